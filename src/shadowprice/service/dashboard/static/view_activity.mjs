// The policy's decisions, newest first, page by page.

import { request } from "./api.mjs";
import { element, empty, jobLink, localTimes, number, Pages, span, swap, table, when } from "./parts.mjs";

const LIMIT = 50;
const KINDS = { admitted: "b-c2", moved: "b-c1", broken: "b-c4", refused: "b-c4", "given-up": "b-c4", standby: "b-c1", paid: "b-c3" };

export class ActivityView {
  constructor(app, [job = ""]) {
    this.app = app;
    this.title = "Activity";
    this.job = job;
    this.pages = new Pages(app);
    this.list = element("div", {});
    this.node = element("div", {}, element("p", { class: "soft" }, "What the policy decided, and why. The page of a job has its whole history."), this.list);
  }

  async refresh() {
    const page = this.pages.wanted;
    const response = await request("decisions", { query: { limit: LIMIT, cursor: page.cursor, job: this.job } });
    const columns = [
      { head: "When", cell: (row) => when(row.at, { seconds: true }) },
      { head: "What", cell: (row) => element("span", { class: `badge ${KINDS[row.kind] ?? "b-c7"}` }, row.kind) },
      { head: "Job", cell: (row) => (row.job === null ? "" : jobLink(row.job, row.job_id)) },
      { head: "Tenant", class: "minor", cell: (row) => row.tenant ?? "" },
      { head: "Reason", class: "why", cell: (row) => element("span", { class: "clip", title: describeEvent(row, this.app.service) }, describeEvent(row, this.app.service)) },
    ];
    swap(this.list, response.decisions.length || page.previous ? table("Decisions, the newest first", columns, response.decisions, { key: (row) => String(row.id) }) : empty("Nothing was decided yet", "Decisions appear here as jobs are submitted and slots begin."),
      this.pages.buttons(page, response.next, response.decisions.length));
  }
}

/** Format a value of an event; fractions below a million have at most six digits. */
function formatValue(value) {
  const rounded = (item) => (typeof item === "number" && !Number.isInteger(item) && Math.abs(item) < 1e6 ? Number(item.toPrecision(6)) : item);
  return typeof value === "object" ? JSON.stringify(value, (_, item) => rounded(item)) : String(rounded(value));
}

/** Describe an event in words, with local times instead of slots; the second argument is the service's status. */
export function describeEvent(event, { origin, slot_seconds: seconds }) {
  const begins = (slot) => new Date(new Date(origin).getTime() + slot * seconds * 1000).toISOString();
  return localTimes(textOf(event, begins));
}

function textOf({ kind, data }, begins) {
  const by = (slot) => begins(slot + 1); // the end of a slot
  const reason = data.reason?.message ?? (typeof data.reason === "string" ? data.reason : "");
  const [first] = String(reason).split("\n");
  const value = data.utility !== null && data.utility !== undefined && data.cost !== null && data.cost !== undefined ? `utility ${number(data.utility)} at cost ${number(data.cost)}` : "";
  switch (kind) {
    case "submitted": return "submitted";
    case "admitted": return [data.promise !== null && data.promise !== undefined ? `promised by ${by(data.promise)}${data.margin ? ` (${number(data.margin)} slot${data.margin === 1 ? "" : "s"} after the plan)` : ""}` : "admitted without a promise", value].filter(Boolean).join(", ");
    case "moved": return (data.before ?? null) === null ? `has a promise again, by ${by(data.promise)}: ${first || "its remaining work fits again"}` : `promise moved from ${by(data.before)} to ${by(data.promise)}${first ? `: ${first}` : ""}`;
    case "broken": return `promise by ${by(data.before)} withdrawn${first ? `: ${first}` : ""}`;
    case "standby": return /^waits/.test(data.message ?? "") ? data.message : `waits: ${data.message ?? ""}`;
    case "refused": case "given-up": return first;
    case "paid": return `paid by ${data.payer ?? "nobody"} to ${data.payee ?? "nobody"} in the slot of ${begins(data.slot)}`;
    case "started": case "resized": return `generation ${data.generation} on ${data.placement.map(([server, workers, ps]) => `${server} (${workers}${ps ? `+${ps} ps` : ""})`).join(", ")}`;
    case "running": return `generation ${data.generation} runs`;
    case "stopped": return `generation ${data.generation} is stopped from ${begins(data.slot)} on`;
    case "finished": return `finished${data.kept === true ? ", as promised" : data.kept === false ? ", later than promised" : ""}; earned ${number(data.utility)}${data.reported === false ? "; its progress was counted by time" : ""}`;
    case "failed": case "retrying": case "lost": case "ended": case "start-failed": return `generation ${data.generation}${data.code !== undefined && data.code !== null ? `, exit status ${data.code}` : ""}${first ? `: ${first}` : ""}`;
    case "revised": return `revised: ${Object.entries(data.changes ?? {}).map(([name, value]) => `${name} = ${formatValue(value)}`).join(", ")}`;
    case "rescheduled": return `the promised slot has another time: ${data.why ?? ""}`;
    case "remeasured": return data.restart === undefined
      ? `measured with ${data.workers} worker${data.workers === 1 ? "" : "s"}: ${number(data.factor)} times the expected speed`
      : `measured: a move costs ${span(data.restart)}`;
    case "displaced": return first;
    default: return first || Object.entries(data).map(([name, value]) => `${name} ${formatValue(value)}`).join(", ");
  }
}
