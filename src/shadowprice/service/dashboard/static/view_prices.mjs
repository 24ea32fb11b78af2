// Prices and reserved shares by kind of server, in past and coming slots.

import { request } from "./api.mjs";
import { chips, element, empty, Figure, note, number, shown, span, swap } from "./parts.mjs";

const SPANS = [24, 100, 500];

export class PricesView {
  constructor(app) {
    this.app = app;
    this.title = "Prices";
    this.span = 24;
    this.kind = null;
    this.tools = element("div", { class: "row" });
    this.place = element("div", {});
    this.kinds = element("div", {});
    this.total = new Figure(app, "A server, by kind", "The price of all resources of a server in a slot. Past prices are as posted; future prices are those that a job would pay now.");
    this.one = new Figure(app, "By resource", "The price of a server's whole capacity of each resource in a slot.", this.kinds);
    this.used = new Figure(app, "Reserved, by kind", "The share of the scarcest resource that is in use or planned.");
    this.node = element("div", {}, this.place, this.tools, this.total.node, this.one.node, this.used.node);
  }

  async refresh() {
    const [coming, past] = await Promise.all([request("prices", { query: { slots: this.span } }), request("prices/history", { query: { past_slots: this.span, limit: 500 } })]);
    const first = coming.slots[0]?.slot ?? Infinity;
    const rows = [...past.slots.filter((row) => row.slot < first), ...coming.slots];
    this.draw(coming, rows, Math.min(first, rows.at(-1)?.slot ?? 0));
  }

  draw(coming, rows, now) {
    swap(this.place, coming.priced ? null : note("info", element("p", {}, `The policy ${coming.policy} posts no prices; only the reserved share is shown.`)));
    swap(this.tools, chips("How far back and ahead", SPANS.map((count) => [count, `± ${span(count * this.app.service.slot_seconds)}`]), this.span, (count) => { this.span = count; this.app.refresh(); }));
    if (!rows.length) {
      for (const figure of [this.total, this.one, this.used]) figure.show(null);
      swap(this.place, empty("Nothing to show yet", "Prices appear with the first slot that is planned."));
      return;
    }
    const names = coming.kinds.map((kind) => kind.name);
    if (!names.includes(this.kind)) [this.kind] = names;
    const slots = rows.map((row) => row.slot);
    const common = { kind: "slotLines", slots: true, steps: true, x: slots, end: slots.at(-1) + 1, x_label: "slot", legend: true, marks: [{ x: now, name: "now" }] };
    const few = coming.kinds.slice(0, 8);
    const sum = (kind) => (kind && Object.values(kind).some((item) => item.price !== undefined) ? Object.values(kind).reduce((total, item) => total + (item.price ?? 0), 0) : null);
    const most = (kind) => (kind && Object.values(kind).some((item) => item.used !== undefined) ? Math.max(...Object.values(kind).map((item) => item.used ?? 0)) : null);
    const label = (kind) => `${shown(kind.name)} (${kind.servers.length})`;
    const series = (read) => few.map((kind, at) => ({ name: label(kind), colour: at, values: rows.map((row) => read(row.kinds[kind.name])) }));
    this.total.show(coming.priced ? { ...common, y_label: "utility per slot", series: series(sum) } : null);
    const resources = [...new Set(rows.flatMap((row) => Object.keys(row.kinds[this.kind] ?? {})))];
    swap(this.kinds, names.length > 1 ? chips("Kind of server", names.map((name) => [name, shown(name)]), this.kind, (name) => { this.kind = name; this.app.refresh(); }) : null);
    this.one.show(coming.priced ? { ...common, y_label: "utility per slot", series: resources.slice(0, 8).map((resource, at) => ({ name: shown(resource), colour: at, values: rows.map((row) => row.kinds[this.kind]?.[resource]?.price ?? null) })) } : null);
    this.used.show({ ...common, y_label: "reserved", percent: true, y_high: 1, series: series(most) });
    if (coming.kinds.length > 8) this.total.heading.textContent = `A server, by kind: the first 8 of ${number(coming.kinds.length)}`;
  }
}
