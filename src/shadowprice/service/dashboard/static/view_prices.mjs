// Prices and what is reserved, by kind of server, past and to come.

import { Chart } from "./charts/charts.mjs";
import { ask } from "./api.mjs";
import { chips, element, empty, note, number, shown, span, swap } from "./parts.mjs";

const SPANS = [24, 100, 500];

export class PricesView {
  constructor(app) {
    this.app = app;
    this.title = "Prices";
    this.span = 24;
    this.kind = null;
    this.charts = new Map();
    this.tools = element("div", { class: "row" });
    this.place = element("div", {});
    this.hosts = ["total", "one", "used"].map((key) => [key, element("div", { class: "chart" })]);
    this.titles = { total: element("h2", {}, "A server, by kind"), one: element("h2", {}, "By resource"), used: element("h2", {}, "Reserved, by kind") };
    this.kinds = element("div", {});
    this.figures = Object.fromEntries(this.hosts.map(([key, host]) => [key, element("figure", {}, this.titles[key], key === "one" ? this.kinds : "", host, element("figcaption", {}, SAYS[key]))]));
    this.node = element("div", {}, this.place, this.tools, ...Object.values(this.figures));
  }

  async refresh() {
    const [coming, past] = await Promise.all([ask("prices", { query: { slots: this.span } }), ask("prices/history", { query: { past_slots: this.span, limit: 500 } })]);
    const first = coming.slots[0]?.slot ?? Infinity;
    const rows = [...past.slots.filter((row) => row.slot < first), ...coming.slots];
    this.draw(coming, rows, Math.min(first, rows.at(-1)?.slot ?? 0));
  }

  draw(coming, rows, now) {
    swap(this.place, coming.priced ? null : note("info", element("p", {}, `The policy ${coming.policy} posts no prices; what is reserved is shown.`)));
    swap(this.tools, chips("How far back and ahead", SPANS.map((count) => [count, `± ${span(count * this.app.service.slot_seconds)}`]), this.span, (count) => { this.span = count; this.app.refresh(); }));
    if (!rows.length) {
      for (const figure of Object.values(this.figures)) figure.hidden = true;
      swap(this.place, empty("Nothing to show yet", "Prices appear with the first slot that is planned."));
      return;
    }
    const names = coming.kinds.map((kind) => kind.name);
    if (!names.includes(this.kind)) [this.kind] = names;
    const slots = rows.map((row) => row.slot);
    const common = { kind: "slotLines", slots: true, steps: true, x: slots, end: slots.at(-1) + 1, x_label: "slot", legend: true, marks: [{ x: now, name: "now" }] };
    const few = coming.kinds.slice(0, 8);
    const sum = (kind) => (kind && Object.values(kind).some((one) => one.price !== undefined) ? Object.values(kind).reduce((total, one) => total + (one.price ?? 0), 0) : null);
    const most = (kind) => (kind && Object.values(kind).some((one) => one.used !== undefined) ? Math.max(...Object.values(kind).map((one) => one.used ?? 0)) : null);
    const label = (kind) => `${shown(kind.name)} (${kind.servers.length})`;
    const series = (read) => few.map((kind, at) => ({ name: label(kind), colour: at, values: rows.map((row) => read(row.kinds[kind.name])) }));
    this.show("total", coming.priced ? { ...common, y_label: "utility a slot", series: series(sum) } : null);
    const resources = [...new Set(rows.flatMap((row) => Object.keys(row.kinds[this.kind] ?? {})))];
    swap(this.kinds, names.length > 1 ? chips("Kind of server", names.map((name) => [name, shown(name)]), this.kind, (name) => { this.kind = name; this.app.refresh(); }) : null);
    this.show("one", coming.priced ? { ...common, y_label: "utility a slot", series: resources.slice(0, 8).map((resource, at) => ({ name: shown(resource), colour: at, values: rows.map((row) => row.kinds[this.kind]?.[resource]?.price ?? null) })) } : null);
    this.show("used", { ...common, y_label: "reserved", percent: true, y_high: 1, series: series(most) });
    if (coming.kinds.length > 8) this.titles.total.textContent = `A server, by kind: the first 8 of ${number(coming.kinds.length)}`;
  }

  show(key, description) {
    this.figures[key].hidden = !description;
    if (!description) return;
    const [, host] = this.hosts.find(([name]) => name === key);
    const chart = this.charts.get(key);
    if (chart) chart.update(description);
    else this.charts.set(key, new Chart(host, description, this.app.charts));
  }

  close() {}
}

const SAYS = {
  total: "The price of all resources of a server for one slot: until now as it was posted, and from now on as a job would pay it today.",
  one: "The price of a server's whole capacity of each resource for one slot.",
  used: "The share of the scarcest resource that runs or is planned.",
};
