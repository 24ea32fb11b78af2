// What-if runs: the utility of the last days with other servers, or under another policy.

import { request } from "./api.mjs";
import { row } from "./dialogs.mjs";
import { bar, button, element, empty, note, number, shown, span, swap, table, tile, to, problemNote, when } from "./parts.mjs";

const STATES = { waiting: "b-c7", running: "b-c2", done: "b-done", failed: "b-c4", cancelled: "b-c7" };
const METRICS = [["total_utility", "Utility earned"], ["arrived", "Jobs"], ["admitted", "Admitted"], ["finished", "Finished"], ["refused", "Refused"], ["mean_jct", "Mean time until done, in slots"]];
const POLL = 1000; // milliseconds between two requests for an unfinished run

export class WhatifView {
  constructor(app, [run = null]) {
    this.app = app;
    this.run = run === null || !/^\d+$/.test(run) ? null : Number(run);
    this.title = this.run === null ? "What if" : `What if ${this.run}`;
    this.inputs = new Map();
    this.place = element("div", {});
    this.result = element("div", { class: "result", "aria-live": "polite" });
    this.node = this.run === null
      ? element("div", {}, element("p", { class: "soft" }, "What would the utility of the last days have been with more or fewer servers, or under another policy? The submitted jobs are simulated twice in the background. Running jobs aren't affected."), element("div", { class: "sides" }, this.place, this.result))
      : element("div", {}, element("p", {}, element("a", { href: to("whatif") }, "← All what-if runs")), this.result);
  }

  async refresh() {
    clearTimeout(this.timer);
    if (this.run !== null) {
      const response = await request(`whatif/${this.run}`);
      this.show(response);
      if (isUnfinished(response)) this.timer = setTimeout(() => this.app.refresh(), POLL);
      return;
    }
    const response = await request("whatif");
    if (!this.made) this.form();
    this.made = true; // later refreshes keep what is being typed
    this.list(response.runs);
    if (response.runs.some(isUnfinished)) this.timer = setTimeout(() => this.app.refresh(), POLL);
  }

  form() {
    const { service } = this.app;
    const field = (options) => row(options, this.inputs);
    const kinds = service.kinds.slice(0, 24);
    const form = element("form", { class: "fields whatif" },
      element("fieldset", {}, element("legend", {}, "Looking back at"), element("div", { class: "pairs" }, field({ name: "days", label: "Days", type: "number", value: "7", hint: "of submitted jobs", required: true }))),
      element("fieldset", {}, element("legend", {}, "Servers to add (negative: to remove)"), element("div", { class: "pairs" }, ...kinds.map((name) => field({ name: `servers ${name}`, label: shown(name), type: "number", value: "0" })))),
      element("fieldset", {}, element("legend", {}, "Policy"), element("div", { class: "pairs" },
        field({ name: "policy", label: "Policy", options: [["", `${service.policy}, as now`], ...service.policies.filter((name) => name !== service.policy).map((name) => [name, name])], value: "" }),
        field({ name: "set", label: "Its parameters", type: "area", rows: 3, wide: true, placeholder: "prices=offline", hint: "One key=value per line; another policy starts from its defaults" }))),
      element("div", { class: "actions" }, element("button", { type: "submit", class: "primary" }, "Simulate")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.requestRun(form, kinds);
    });
    this.faults = element("div", {});
    this.place.replaceChildren(form, this.faults);
  }

  async requestRun(form, kinds) {
    const go = form.querySelector("button[type=submit]"), value = (name) => this.inputs.get(name).value.trim();
    go.disabled = true;
    try {
      const servers = {};
      for (const name of kinds) if (Number(value(`servers ${name}`))) servers[name] = Number(value(`servers ${name}`));
      const body = { days: Number(value("days")), servers };
      if (value("policy")) body.policy = value("policy");
      const set = settings(value("set"));
      if (Object.keys(set).length) body.set = set;
      if (!Object.keys(servers).length && !body.policy && !body.set) throw new Error("no change is requested: add a server, or choose a policy");
      const run = await request("whatif", { method: "POST", body });
      location.hash = to("whatif", String(run.id)).slice(1);
    } catch (problem) {
      swap(this.faults, problemNote(problem));
    } finally {
      go.disabled = false;
    }
  }

  list(runs) {
    const columns = [
      { head: "Change", cell: (run) => element("a", { href: to("whatif", String(run.id)), class: "jobname", "data-focus": `run ${run.id}` }, words(run.question, this.app.service.policy)) },
      { head: "Requested", class: "minor", cell: (run) => when(run.requested_at) },
      { head: "State", cell: (run) => element("span", { class: `badge ${STATES[run.state]}` }, run.state) },
      { head: "Gain", class: "num", cell: (run) => (run.gain === null ? element("span", { class: "soft" }, "–") : signed(run.gain)) },
    ];
    swap(this.result, runs.length ? table("What-if runs, newest first", columns, runs, { key: (run) => String(run.id) }) : empty("No what-if runs yet", "They are deleted when the service stops."));
  }

  show(run) {
    const { as_is: before, changed: after } = run;
    const rows = METRICS.filter(([key]) => before?.[key] !== undefined);
    const columns = [
      { head: "", cell: ([, name]) => name },
      { head: `As it is (${before?.policy ?? ""})`, class: "num", cell: ([key]) => number(before[key]) },
      { head: `Changed (${after?.policy ?? "…"})`, class: "num", cell: ([key]) => (after?.[key] === undefined ? element("span", { class: "soft" }, "–") : number(after[key])) },
      { head: "Difference", class: "num", cell: ([key]) => (after?.[key] === undefined || after[key] === null || before[key] === null ? element("span", { class: "soft" }, "–") : signed(after[key] - before[key])) },
    ];
    const share = run.progress.done / run.progress.of;
    swap(this.result,
      element("h2", {}, element("span", { class: `badge ${STATES[run.state]}` }, run.state), ` ${words(run.question, this.app.service.policy)}`),
      isUnfinished(run) ? note("info", element("p", {}, `${run.progress.done} of ${run.progress.of} simulations are done. `, bar(share, `${run.progress.done} of ${run.progress.of} simulations done`, { wide: true })), button("Cancel", () => this.cancel(), { kind: "danger" })) : null,
      run.state === "failed" ? note("bad", element("p", {}, run.reason)) : null,
      run.gain === null ? null : element("div", { class: "tiles" }, tile("Gain", signed(run.gain), "utility, over these days"), tile("Gain per day", signed(run.gain / run.question.days), "utility"), waited(run.times), tile("Jobs", number(run.jobs), `submitted in ${span(Math.round(run.question.days * 86_400), 2)}${before?.arrived < run.jobs ? `; ${number(run.jobs - before.arrived)} fit on no server and are omitted` : ""}`)),
      rows.length ? table("Both simulations", columns, rows, { key: ([key]) => key }) : null,
      element("p", { class: "remark" }, "Both are simulations of the same submissions from an empty cluster, so only the requested change differs. A policy can earn less with more servers, because it makes other decisions."));
  }

  async cancel() {
    await request(`whatif/${this.run}`, { method: "DELETE" });
    await this.app.did("The run is cancelled");
  }

  close() {
    clearTimeout(this.timer);
  }
}

/** Return a tile with the waiting time that the change saves. */
function waited(times) {
  if (!times?.jobs) return null;
  const mean = Math.round(times.mean_wait_seconds), hours = times.waiting_saved_hours;
  return tile("Waiting saved", `${signed(hours)} h`, mean === 0 ? `as long on average, over ${number(times.jobs)} jobs that ran in both` : `${span(Math.abs(mean), 2)} ${mean < 0 ? "less" : "more"} per job, over ${number(times.jobs)} jobs that ran in both`);
}

const isUnfinished = (run) => run.state === "waiting" || run.state === "running";
const signed = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${number(Math.abs(value))}`;

/** Describe the requested change. */
function words(question, policy) {
  const parts = Object.entries(question.servers).map(([name, count]) => `${count > 0 ? "+" : "−"}${Math.abs(count)} ${shown(name)}`);
  if (question.policy !== policy) parts.push(`policy ${question.policy}`);
  for (const [key, value] of leaves(question.set)) parts.push(`${shown(key)}=${shown(String(value))}`);
  return `${parts.join(", ") || "as it is"} · ${question.days} day${question.days === 1 ? "" : "s"}`;
}

/** Return the nested parameters of a policy as [key with dots, value]. */
const leaves = (set, before = "") => Object.entries(set).flatMap(([key, value]) => (value !== null && typeof value === "object" ? leaves(value, `${before}${key}.`) : [[`${before}${key}`, value]]));

/** Parse lines such as `key=value`; keys with dots are nested, and numbers, true and false aren't text. */
function settings(text) {
  const parsed = {};
  for (const line of text.split("\n")) {
    if (!line.trim()) continue;
    const [, key, value] = line.match(/^\s*([^=\s]+)\s*=\s*(.*?)\s*$/) ?? [];
    if (key === undefined) throw new Error(`expected a line such as key=value, got "${line.trim()}"`);
    const path = key.split(".");
    let inside = parsed;
    for (const step of path.slice(0, -1)) inside = Object.hasOwn(inside, step) && typeof inside[step] === "object" ? inside[step] : (inside[step] = Object.create(null));
    inside[path.at(-1)] = value === "true" ? true : value === "false" ? false : value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
  }
  return parsed;
}
