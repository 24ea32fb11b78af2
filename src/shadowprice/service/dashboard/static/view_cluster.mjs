// The cluster: where jobs run and are promised, and the servers with an operator's actions.

import { Chart } from "./charts/charts.mjs";
import { request, part } from "./api.mjs";
import { bar, button, chips, element, empty, jobLink, number, percent, shown, span, swap, table, tile, to, when } from "./parts.mjs";
import { describe, heatOf, usedNow } from "./timeline.mjs";

const SPANS = [12, 24, 72, 240]; // choices of past and future slots
const ROWS = 16; // servers of one chart
const LIST = 25; // servers of one page of the list
let chosenSpan = 24; // kept when the view is left

export class ClusterView {
  constructor(app, [server = null]) {
    this.app = app;
    this.server = server;
    this.title = server === null ? "Cluster" : `Server ${shown(server)}`;
    this.at = 0;
    this.page = 0;
    this.words = "";
    this.tiles = element("div", { class: "tiles" });
    this.heatHost = element("div", { class: "chart" });
    this.host = element("div", { class: "chart" });
    this.heatFigure = element("figure", { hidden: true }, element("h2", {}, "Load"), this.heatHost,
      element("figcaption", {}, "Each row is a server, or several if there are many, and each column is a slot. The colour is the used share of the scarcest resource, past and planned. Click a row to see the server's jobs."));
    this.controls = element("div", { class: "row" });
    this.remark = element("p", { class: "remark" });
    this.figure = element("figure", {}, element("h2", {}, server === null ? "Jobs by server" : "Jobs on this server"), this.controls, this.host, this.remark,
      element("figcaption", { class: "looks" }, look("full", "ran"), look("half", "planned"), look("dash", "expected to stay here"), look("open", "promised, not placed yet")));
    this.search = element("input", { type: "search", placeholder: "Find servers", "aria-label": "Find servers by name", oninput: () => { this.words = this.search.value.trim().toLowerCase(); this.page = this.at = 0; this.list(); this.draw(); } });
    this.listed = element("div", {});
    this.servers = element("section", {}, element("div", { class: "row" }, element("h2", {}, server === null ? "Servers" : "The server"), element("span", { class: "grow" }), server === null ? this.search : "",
      app.operates && server === null ? button("Add servers", () => this.add(), { kind: "primary" }) : ""), this.listed);
    this.node = element("div", {}, server === null ? this.tiles : element("p", {}, element("a", { href: to("") }, "← All servers")), this.heatFigure, this.figure, this.servers);
    app.charts.pickServer = (row) => {
      const name = this.response?.servers[row];
      if (name !== undefined) location.hash = to("server", name).slice(1);
    };
  }

  async refresh() {
    const query = { past_slots: chosenSpan, future_slots: chosenSpan, server: this.server };
    const [response, listed, service, prices] = await Promise.all([request("timeline", { query }), request("servers"), request("service"),
      this.server === null ? request("prices", { query: { slots: 1 } }).catch(() => null) : null]);
    Object.assign(this.app.service, service);
    this.response = response;
    this.allServers = listed.servers;
    this.used = usedNow(response);
    if (this.server === null) this.sum(service, prices);
    this.draw();
    this.list();
  }

  sum(service, prices) {
    const count = (states) => states.reduce((sum, state) => sum + (service.jobs[state] ?? 0), 0);
    const up = this.allServers.filter((item) => item.state === "up").length;
    const load = this.allServers.length ? [...this.used.values()].reduce((a, b) => a + b, 0) / this.allServers.length : 0;
    const out = ["lost", "drained", "cordoned"].map((state) => [this.allServers.filter((server) => server.state === state).length, state]).filter(([n]) => n).map(([n, state]) => `${n} ${state}`).join(", ");
    const waiting = count(["pending", "admitted", "standby"]);
    const price = prices?.priced ? prices.slots[0] : null;
    const highestPrice = price ? Math.max(0, ...Object.values(price.kinds).map((kind) => Object.values(kind).reduce((sum, resource) => sum + (resource.price ?? 0), 0))) : null;
    swap(this.tiles,
      tile("Running", number(count(["running", "resizing"])), service.jobs.resizing ? `${service.jobs.resizing} of them moving` : "jobs now"),
      tile("Waiting", number(waiting), waiting ? `${number(service.jobs.admitted ?? 0)} promised, ${number((service.jobs.standby ?? 0) + (service.jobs.pending ?? 0))} not` : "no job waits"),
      tile("Servers up", `${number(up)} of ${number(this.allServers.length)}`, out || "all of them"),
      tile("In use now", percent(load), bar(load, `${percent(load)} of the cluster in use`, { wide: true })),
      tile("A server costs", highestPrice === null ? "–" : number(highestPrice), highestPrice === null ? "the policy posts no prices" : "utility per slot, most expensive kind, next slot"),
      tile("Next slot", when(service.next_slot_begins, { brief: true, seconds: service.slot_seconds < 120, every: service.slot_seconds }), element("small", { "data-moment": service.next_slot_begins, "data-every": String(service.slot_seconds) }, "")),
    );
  }

  shownServers() {
    if (this.server !== null) return [this.server];
    const words = this.words.split(/\s+/).filter(Boolean);
    return this.response.servers.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
  }

  draw() {
    if (!this.response) return;
    const { charts } = this.app, { response } = this;
    const names = this.shownServers();
    this.at = Math.min(this.at, Math.max(0, Math.ceil(names.length / ROWS) - 1));
    const onPage = names.slice(this.at * ROWS, (this.at + 1) * ROWS);
    swap(this.controls,
      chips("How far back and ahead", SPANS.map((count) => [count, `± ${span(count * response.slot_seconds)}`]), chosenSpan, (count) => { chosenSpan = count; this.app.refresh(); }),
      element("span", { class: "grow" }),
      names.length > ROWS ? element("span", { class: "pager" }, button("Previous", () => { this.at -= 1; this.draw(); }, { focus: "chart previous", disabled: this.at === 0 }),
        element("span", {}, `servers ${this.at * ROWS + 1} to ${Math.min(names.length, (this.at + 1) * ROWS)} of ${number(names.length)}`),
        button("Next", () => { this.at += 1; this.draw(); }, { focus: "chart next", disabled: (this.at + 1) * ROWS >= names.length })) : null);
    const many = this.server === null && response.servers.length > ROWS;
    this.heatFigure.hidden = !many;
    if (many) {
      const heat = heatOf(response);
      if (this.heat) this.heat.update(heat);
      else this.heat = new Chart(this.heatHost, heat, charts, { eager: true });
    }
    if (response.bars === null) {
      this.chart?.dispose();
      this.chart = null;
      swap(this.host, empty("More than 4,000 blocks", "Click a server in the load above, or choose fewer slots."));
      this.remark.textContent = "";
      return;
    }
    const description = describe(response, { servers: onPage, promises: this.server === null && this.at === 0 && !this.words });
    if (this.chart) this.chart.update(description);
    else this.chart = new Chart(this.host, description, charts);
    const remarks = [];
    if (description.more) remarks.push(`${number(description.more)} more jobs are promised and not placed yet.`);
    if (response.incomplete) remarks.push("Older blocks are omitted, because there are too many.");
    if (!description.bars.length) remarks.push("Nothing ran in this time, and nothing is planned.");
    this.remark.textContent = remarks.join(" ");
  }

  list() {
    if (!this.allServers) return;
    const wanted = new Set(this.shownServers());
    const rows = this.allServers.filter((item) => wanted.has(item.name));
    const pages = Math.max(1, Math.ceil(rows.length / LIST));
    this.page = Math.min(this.page, pages - 1);
    const columns = [
      { head: "Server", cell: (row) => element("a", { href: to("server", row.name), class: "jobname", title: row.name, "data-focus": `server ${row.name}` }, row.name) },
      { head: "State", cell: (row) => [element("span", { class: `badge ${{ up: "b-c2", cordoned: "b-c1", drained: "b-c1", lost: "b-c4" }[row.state]}` }, row.state), row.role === "any" ? null : element("small", { class: "soft" }, ` ${row.role === "ps" ? "parameter servers" : "workers"} only`)].filter(Boolean) },
      { head: "In use", cell: (row) => element("span", { class: "progress" }, bar(this.used.get(row.name) ?? 0, `${percent(this.used.get(row.name) ?? 0)} of ${shown(row.name)} in use`), element("span", { class: "num" }, percent(this.used.get(row.name) ?? 0))) },
      { head: "Capacity", class: "minor", cell: (row) => element("span", { class: "soft" }, Object.entries(row.capacity).map(([name, amount]) => `${name} ${amount}`).join(" · ")) },
      { head: "Jobs", cell: (row) => jobsOf(row) },
    ];
    if (this.app.operates) columns.push({ head: "", class: "acts", cell: (row) => this.actions(row) });
    swap(this.listed, table("Servers", columns, rows.slice(this.page * LIST, (this.page + 1) * LIST), { key: (row) => row.name, none: "No server has this in its name." }),
      pages > 1 ? element("div", { class: "pager end" }, button("Previous", () => { this.page -= 1; this.list(); }, { focus: "list previous", disabled: this.page === 0 }), element("span", {}, `${this.page + 1} of ${pages}`), button("Next", () => { this.page += 1; this.list(); }, { focus: "list next", disabled: this.page >= pages - 1 })) : null);
  }

  actions(server) {
    const act = (label, run, kind = "") => button(label, run, { kind, focus: `${label} ${server.name}`, "aria-label": `${label} ${server.name}` });
    return element("span", { class: "acts" },
      server.state === "up" ? act("Cordon", () => this.stopPlacing(server, "cordon")) : null,
      ["up", "cordoned"].includes(server.state) ? act("Drain", () => this.stopPlacing(server, "drain")) : null,
      ["cordoned", "drained"].includes(server.state) ? act("Uncordon", () => this.uncordon(server)) : null,
      act("Remove", () => this.remove(server), "quiet"));
  }

  async stopPlacing(server, how) {
    const drain = how === "drain";
    const done = await this.app.form({
      title: `${drain ? "Drain" : "Cordon"} ${shown(server.name)}?`,
      body: [element("p", {}, drain
        ? "It takes no more work from the next slot on. Its jobs are stopped at the end of their slot, with their grace period, and planned again elsewhere."
        : "It takes no more work from the next slot on. Its jobs stay there until they end."), drain ? affected(server) : ""],
      action: drain ? "Drain it" : "Cordon it", danger: drain,
      send: () => request(`servers/${part(server.name)}`, { method: "PATCH", body: { [how]: true } }),
    });
    if (done) await this.app.did(`${shown(server.name)} is ${drain ? "drained" : "cordoned"}`);
  }

  async uncordon(server) {
    const done = await this.app.form({
      title: `Let ${shown(server.name)} take work again?`,
      body: [element("p", {}, "Jobs may be placed there from the next slot on.")],
      action: "Uncordon it",
      send: () => request(`servers/${part(server.name)}`, { method: "PATCH", body: { drain: false } }),
    });
    if (done) await this.app.did(`${shown(server.name)} takes work again`);
  }

  async remove(server) {
    const { app } = this;
    const done = await app.form({
      title: `Remove ${shown(server.name)}?`, danger: true, action: "Remove it",
      body: [element("p", {}, "It leaves the cluster at the next slot. Its jobs are stopped and planned again on other servers. Promises that can't be kept without it are moved or withdrawn."), affected(server)],
      fields: server.jobs.length ? [{ name: "name", label: "Jobs run there. To confirm, type the server's name", required: true }] : [],
      send: async ({ name }) => {
        if (server.jobs.length && name !== server.name) throw new Error("this is not the name of the server");
        await request(`servers/${part(server.name)}`, { method: "DELETE" });
      },
    });
    if (!done) return;
    if (this.server !== null) location.hash = "/";
    await app.did(`${shown(server.name)} is removed`);
  }

  async add() {
    const { app } = this;
    const like = this.allServers[0];
    const done = await app.form({
      title: "Add servers", action: "Add", body: [element("p", { class: "soft" }, "They take work from the next slot on.")],
      fields: [
        { name: "name", label: "Name", required: true, placeholder: "gpu-b", hint: "Several are numbered: gpu-b-0, gpu-b-1, …" },
        { name: "count", label: "How many", type: "number", value: "1" },
        { name: "capacity", label: "Capacity of each", type: "area", required: true, rows: 4, hint: "One amount per line", value: like ? Object.entries(like.capacity).filter(([, amount]) => amount !== "unlimited").map(([name, amount]) => `${name}: ${amount}`).join("\n") : "gpu: 8\ncpu: 64" },
        { name: "role", label: "Role", options: [["any", "workers and parameter servers"], ["worker", "workers"], ["ps", "parameter servers"]], value: "any" },
      ],
      send: ({ name, count, capacity, role }) => request("servers", { method: "POST", body: { name, ...(Number(count) > 1 ? { count: Number(count) } : {}), role, capacity: amounts(capacity) } }),
    });
    if (done) await app.did(`Added ${done.servers.length === 1 ? shown(done.servers[0].name) : `${done.servers.length} servers`}`);
  }

  close() {
    this.app.charts.pickServer = null;
  }
}

function look(kind, text) {
  return element("span", { class: "look" }, element("i", { class: `look-${kind}`, "aria-hidden": "true" }), text);
}

function jobsOf(server) {
  if (!server.jobs.length) return element("span", { class: "soft" }, "–");
  const hidden = server.jobs.filter((job) => job.job === null).length;
  const mine = server.jobs.filter((job) => job.job !== null);
  const parts = mine.slice(0, 3).flatMap((job, at) => [at ? ", " : "", jobLink(job.job, job.job_id)]);
  if (mine.length > 3) parts.push(` and ${mine.length - 3} more`);
  if (hidden) parts.push(element("span", { class: "soft" }, `${mine.length ? ", " : ""}${hidden} of other tenants`));
  return element("span", { class: "joblist" }, ...parts);
}

function affected(server) {
  if (!server.jobs.length) return element("p", { class: "soft" }, "Nothing runs there now.");
  return element("p", {}, element("b", {}, `${server.jobs.length} job${server.jobs.length === 1 ? " runs" : "s run"} there: `), server.jobs.slice(0, 12).map((job) => shown(job.job ?? "another tenant's")).join(", ") + (server.jobs.length > 12 ? " and more" : ""));
}

/** Parse lines such as `gpu: 8`; amounts with a unit stay text. */
export function amounts(text) {
  const parsed = {};
  for (const line of text.split(/[\n,]+/)) {
    if (!line.trim()) continue;
    const [, name, amount] = line.match(/^\s*([^:=]+?)\s*[:=]\s*(.+?)\s*$/) ?? [];
    if (name === undefined) throw new Error(`expected a line such as gpu: 8, got "${line.trim()}"`);
    parsed[name] = /^\d+(\.\d+)?$/.test(amount) ? Number(amount) : amount;
  }
  return parsed;
}
