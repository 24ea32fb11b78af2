// Simulated decisions beside observed executions, for a service that only observes.

import { request } from "./api.mjs";
import { badge, chips, element, empty, Figure, jobLink, note, number, Pages, percent, shown, span, swap, table, tile, when } from "./parts.mjs";
import { describe, RAN } from "./timeline.mjs";

const SPANS = [1, 7, 30, 365];
const ROWS = 16; // servers of one chart
const LIMIT = 25;
const REAL = { "not seen": ["c7", "was never observed to run"], running: ["c2", "really runs"], ended: ["done", "ended; counts as completed"], failed: ["c4", "is known to have failed"] };
let days = 7;

export class ObservedView {
  constructor(app) {
    this.app = app;
    this.title = "Observed";
    this.pages = new Pages(app);
    this.tools = element("div", { class: "row" });
    this.notes = element("div", {});
    this.tiles = element("div", { class: "tiles" });
    this.use = new Figure(app, "Servers in use", "The used share of the servers' scarcest resources in each slot. Jobs that were never submitted here don't count, because their demand is unknown.");
    this.would = new Figure(app, "What would have run where", "The simulation: every job progresses at its stated speed.");
    this.real = new Figure(app, "What really ran where", "As observed, up to the last poll. Tenants have the same colours in both charts.");
    this.list = element("div", {});
    this.strangers = element("div", {});
    this.node = element("div", {}, this.tools, this.tiles, this.notes, this.use.node, this.would.node, this.real.node,
      element("section", {}, element("h2", {}, "Job by job"), this.list), this.strangers);
  }

  async refresh() {
    const back = Math.min(1000, Math.max(1, Math.ceil((days * 86_400) / this.app.service.slot_seconds)));
    const shorter = Math.min(back, 240);
    const query = { past_slots: shorter, future_slots: 1 }, page = this.pages.wanted;
    const [response, jobs, would, real] = await Promise.all([request("comparison", { query: { days } }), request("comparison/jobs", { query: { cursor: page.cursor, limit: LIMIT } }),
      request("timeline", { query }), request("timeline", { query: { ...query, observed: "true" } })]);
    this.sum(response);
    this.use.show(used(response.utilization));
    this.would.show(placements(would));
    this.real.show(placements(real));
    this.jobs(jobs, page);
    this.others(response.unmanaged_jobs);
  }

  sum(response) {
    const { simulated: would, observed: real, both, promises } = response;
    swap(this.tools, chips("Jobs submitted in the last", SPANS.map((count) => [count, count === 1 ? "day" : `${count} days`]), days, (count) => { days = count; this.app.refresh(); }),
      element("span", { class: "grow" }), element("span", { class: "soft" }, ...(response.last_observation ? ["last poll ", when(response.last_observation, { seconds: true })] : ["not polled yet"])));
    const gain = would.utility - real.utility;
    const pair = (a, b) => [number(a), element("small", {}, ` ${number(b)} really`)];
    const took = (seconds) => (seconds === null ? "–" : span(Math.round(seconds), 2));
    swap(this.tiles,
      tile("Would have earned", number(would.utility), `${gain >= 0 ? "+" : "−"}${number(Math.abs(gain))} compared with reality`),
      tile("Really earned", number(real.utility), real.unknown_utility ? `without ${real.unknown_utility} jobs of unknown utility` : "utility of ended jobs"),
      tile("Finished", pair(would.finished, real.finished), `of ${number(response.jobs)} jobs`),
      tile("Open", pair(would.running + would.waiting, real.running + real.waiting), `${number(would.refused)} would be refused`),
      tile("Until done", [took(both.simulated_seconds), element("small", {}, ` ${took(both.observed_seconds)} really`)], both.jobs ? `mean of ${number(both.jobs)} jobs that finished in both` : "no job finished in both"),
      tile("By the promise", promises.jobs ? percent(promises.observed_in_time / promises.jobs) : "–", promises.jobs ? `of ${number(promises.jobs)} promised jobs really ended in time` : "no promised job has ended"),
    );
    const remarks = [];
    if (real.assumed_completed) remarks.push(`${number(real.assumed_completed)} jobs ended with an unknown exit status; they count as completed.`);
    if (response.unmanaged_jobs.count) remarks.push(`${number(response.unmanaged_jobs.count)} jobs ran without being submitted here. Their utility is unknown, and the simulation ignores them, so its totals are too high.`);
    if (response.utilization.unknown_servers.length) remarks.push(`Some jobs ran on servers that aren't in the cluster file: ${response.utilization.unknown_servers.slice(0, 5).map(shown).join(", ")}.`);
    if (response.incomplete) remarks.push("Older jobs are omitted, because there are too many.");
    swap(this.notes, remarks.length ? note("warn", element("p", {}, remarks.join(" "))) : null);
  }

  jobs(response, page) {
    const worth = (value) => (value === null ? element("span", { class: "soft" }, "–") : number(value));
    const columns = [
      { head: "Job", cell: (job) => jobLink(job.name, job.id) },
      ...(this.app.operates ? [{ head: "Tenant", class: "minor", cell: (job) => job.tenant ?? element("span", { class: "soft" }, "–") }] : []),
      { head: "Would be", cell: (job) => badge(job.simulated.state) },
      { head: "Done", cell: (job) => (job.simulated.completion ? when(job.simulated.completion, { brief: true }) : job.simulated.promise ? ["promised ", when(job.simulated.promise, { brief: true })] : element("span", { class: "soft" }, "–")) },
      { head: "Earns", class: "num", cell: (job) => worth(job.simulated.utility) },
      { head: "Really", cell: (job) => element("span", { class: `badge b-${REAL[job.observed.state]?.[0] ?? "c7"}`, title: REAL[job.observed.state]?.[1] ?? "" }, job.observed.state) },
      { head: "Ended", cell: (job) => when(job.observed.completion, { brief: true }) },
      { head: "Earned", class: "num", cell: (job) => worth(job.observed.utility) },
      { head: "Gain", class: "num", cell: (job) => worth(job.gain) },
    ];
    const nothing = !response.jobs.length && !page.previous;
    swap(this.list, nothing ? empty("No job was submitted", "Submit the jobs of the other scheduler to this service too, with the same names and with utilities.")
      : table("Jobs on both sides, the newest first", columns, response.jobs, { key: (job) => String(job.id), none: "There are no more." }),
    this.pages.buttons(page, response.next, response.jobs.length));
  }

  others(response) {
    if (!response.count) return swap(this.strangers);
    const columns = [
      { head: "Job", cell: (job) => shown(job.name) },
      { head: "Tenant", class: "minor", cell: (job) => (job.tenant === null ? element("span", { class: "soft" }, "–") : shown(job.tenant)) },
      { head: "Really", cell: (job) => element("span", { class: `badge b-${REAL[job.state][0]}` }, job.state) },
      { head: "Began", cell: (job) => when(job.started) },
      { head: "Ended", cell: (job) => when(job.completion) },
      { head: "Utility", cell: () => element("span", { class: "soft" }, "unknown") },
    ];
    return swap(this.strangers, element("section", {}, element("h2", {}, "Not submitted here"), element("p", { class: "soft" }, "These jobs ran and were never submitted here, so their utility is unknown."), table("Jobs that were not submitted here", columns, response.newest)));
  }
}

function used(response) {
  const slots = response.simulated.map((_, at) => response.first + at);
  return slots.length ? {
    kind: "slotLines", slots: true, steps: true, x: slots, end: response.first + slots.length, x_label: "slot", y_label: "used", percent: true, y_high: 1, legend: true,
    series: [{ name: "would have been used", colour: 0, values: response.simulated }, { name: "really used", colour: 1, values: response.observed }],
  } : null;
}

/** Return the chart of servers over time until now; simulated and observed charts have the same rows, to be compared. */
function placements(response) {
  if (response.bars === null) return null;
  const description = describe({ ...response, last: Math.max(response.first + 1, Math.ceil(response.now)) }, { servers: response.servers.slice(0, ROWS), promises: false });
  description.bars = description.bars.filter((bar) => bar.what === RAN);
  return description.bars.length ? description : null;
}
