// One job: its promise and progress, its past and planned placements, its metrics, history and logs.

import { request, now, part } from "./api.mjs";
import { counted, positionsOf, valueAt } from "./curves.mjs";
import { badge, bar, button, distance, element, Figure, isOpen, lengthTile, note, number, outlookNote, percent, reasonOf, shown, span, swap, table, tile, to, when } from "./parts.mjs";
import { describe } from "./timeline.mjs";
import { describeEvent } from "./view_activity.mjs";
import { absoluteMoment, PRIORITIES, timePerStep } from "./view_submit.mjs";

const METRICS = 6; // maximum number of charts of metrics
const CONSTANTS = 24; // maximum number of listed metrics that never changed
const KEPT = 400_000; // maximum characters of a log in the page
const PIECE = 65_536; // maximum bytes of a log that are fetched at once

export class JobView {
  constructor(app, [reference = ""]) {
    this.app = app;
    this.given = this.reference = reference; // as in the address; `reference` becomes the job's id
    this.name = reference;
    this.title = shown(reference);
    this.state = element("span", {});
    this.acts = element("span", { class: "acts" });
    this.beside = [this.state, element("span", { class: "grow" }), this.acts];
    this.place = element("div", {});
    this.outlook = element("div", {});
    this.tiles = element("div", { class: "tiles" });
    this.pace = new Figure(app, "Progress against the promise", "");
    this.metrics = element("div", { class: "grid2" });
    this.constants = element("div", { class: "tiles", hidden: true });
    this.metricFigures = new Map();
    this.where = new Figure(app, "Where it ran, and will");
    this.history = element("section", {});
    this.generations = element("section", {});
    this.logs = new Logs(app, reference);
    this.spec = element("details", { class: "spec" });
    this.node = element("div", {}, this.place, this.outlook, this.tiles, this.pace.node, this.metrics, this.constants, this.where.node, this.logs.node, this.history, this.generations, this.spec);
  }

  async refresh() {
    const job = await request(`jobs/${part(this.reference)}`);
    this.keepReference(job);
    const path = `jobs/${part(this.reference)}`;
    const [history, curve] = await Promise.all([request(`${path}/explain`), request(`${path}/progress`, { query: { limit: 2000 } })]);
    this.job = job;
    const { slot_seconds: seconds, origin } = this.app.service;
    const slots = (from, to) => (to - from) / 1000 / seconds;
    const last = isOpen(job) ? job.completion_slot ?? job.promise_slot ?? 0 : 0;
    const within = (count, least) => Math.min(1000, Math.ceil(Math.max(least, count)));
    const query = { job: this.reference, past_slots: within(slots(new Date(job.started ?? job.submitted), now()) + 1, 3), future_slots: within(last - slots(new Date(origin), now()) + 3, 3) };
    const where = await request("timeline", { query });
    this.draw(job, history, curve.points, where);
  }

  /** Refer to the job by its id from now on, because another job may get its name. */
  keepReference(job) {
    this.reference = this.logs.reference = `id:${job.id}`;
    if (this.name === job.name) return;
    this.name = job.name;
    this.title = shown(job.name);
    this.heading.textContent = this.title;
    if (this.app.view === this) document.title = `${this.title} · Shadowprice`;
  }

  draw(job, history, points, where) {
    const open = isOpen(job);
    swap(this.state, badge(job.state));
    swap(this.acts, job.started ? element("a", { class: "act", href: to("compare", this.given) }, "Compare") : null, open ? button("Revise", () => this.revise()) : null, open ? button("Cancel the job", () => this.cancel(), { kind: "danger" }) : null);
    const reason = job.reason?.message ?? "";
    const rest = reason.split("\n").slice(1);
    swap(this.place, element("p", { class: "soft under" }, job.tenant === null ? "without a tenant" : `of ${shown(job.tenant)}`, " · submitted ", when(job.submitted)),
      reason ? note(["refused", "failed"].includes(job.state) ? "bad" : "warn", element("p", {}, element("b", {}, { standby: "It waits: ", refused: "Refused: ", failed: "Failed: " }[job.state] ?? ""), reasonOf(job)),
        rest.length ? element("pre", { class: "tail" }, ...rest.flatMap((line) => [clean(line), element("br")])) : null) : null);
    if (job.obstacle) this.place.append(note("bad", element("p", {}, `${job.obstacle}.`)));
    if (job.broken_promise) this.place.append(note("warn", element("p", {}, element("b", {}, "The promise was not kept: "), `${job.broken_promise.line}.`)));
    this.drawOutlook(job);
    this.sum(job, where);
    this.drawPace(job, points, where);
    this.drawMetrics(points);
    const description = where.bars && describe(where, { servers: [...new Set(where.bars.server)] }); // null: too many blocks
    this.where.show(description?.bars.length ? description : null);
    this.drawHistory(history);
    this.drawGenerations(history.generations);
    this.logs.setGenerations(history.generations, open, job.state === "failed" ? reason.match(/^(?:worker|ps)-\d+(?= )/)?.[0] : undefined);
    if (!this.spec.childElementCount && job.spec) this.spec.replaceChildren(element("summary", {}, "What was submitted"), element("pre", { class: "log", tabindex: "0" }, ...JSON.stringify(job.spec, null, 2).split("\n").flatMap((line) => [line, element("br")])));
  }

  /** Fetch the outlook of a job that doesn't run, only once per state and reason, because it takes up to a second. */
  async drawOutlook(job) {
    const waits = ["standby", "refused"].includes(job.state) || (job.state === "admitted" && !job.servers.length);
    const reason = waits ? `${job.state} ${job.completion} ${job.reason?.message ?? ""}` : null;
    if (reason === this.outlookReason) return;
    this.outlookReason = reason;
    swap(this.outlook);
    if (reason === null) return;
    try {
      const { outlook } = await request(`jobs/${part(this.reference)}/explain`, { query: { outlook: true } });
      if (outlook?.lines.length && reason === this.outlookReason) swap(this.outlook, outlookNote(outlook));
    } catch {
      this.outlookReason = undefined; // the next refresh tries again
    }
  }

  sum(job, where) {
    const share = job.required ? Math.min(1, job.state === "finished" ? 1 : job.progress / job.required) : 0;
    const late = job.first_promise_slot !== null && job.completion_slot !== null && job.completion_slot > job.first_promise_slot;
    const moved = job.first_promise_slot !== null && job.promise_slot !== null && job.first_promise_slot !== job.promise_slot;
    const finished = job.state === "finished";
    const promise = job.promise ?? null;
    const expected = isOpen(job) ? job.completion : null;
    swap(this.tiles,
      tile("Promised", promise ? when(promise, { brief: true }) : "no promise", promise ? [moved ? `first for slot ${number(job.first_promise_slot)}, now ${number(job.promise_slot)}` : `by the end of slot ${number(job.promise_slot)}${job.promise_margin_slots ? `, ${number(job.promise_margin_slots)} after the plan, learnt from ${number(job.promise_margin_jobs)} earlier jobs` : ""}`] : isOpen(job) ? (job.state === "pending" ? "not decided yet" : job.predicted ? "its length is predicted, not stated" : "once its utility exceeds the price") : ""),
      finished ? tile("Finished", when(job.completion, { brief: true }), job.first_promise_slot === null ? "" : late ? element("span", { class: "tag late" }, "later than promised") : element("span", { class: "tag kept" }, "as promised"))
        : !isOpen(job) ? tile("Ended", when(job.closed, { brief: true }), element("span", { "data-moment": job.closed }, distance(job.closed)))
        : tile("Expected", expected ? when(expected, { brief: true }) : "–", expected ? element("span", { "data-moment": expected }, distance(expected)) : ""),
      tile("Done", percent(share), [bar(share, `${percent(share)} of the work done`, { wide: true, kind: late && !finished ? "late" : "" }), job.required === 1 ? " of the expected time" : ` ${number(job.progress)} of ${number(job.required)} mini-batches`]),
      tile("Runs on", job.servers.length ? `${number(job.workers)}${job.ps ? ` + ${number(job.ps)} ps` : ""}` : "–", job.servers.length ? job.servers.slice(0, 3).map(shown).join(", ") + (job.servers.length > 3 ? ` and ${job.servers.length - 3} more` : "") : isOpen(job) ? "no process runs" : ""),
      tile(finished ? "Earned" : "Worth", job.utility === null ? "–" : number(job.utility), job.cost === null ? "" : `utility, at a cost of ${number(job.cost)} to other jobs`),
      ...(job.predicted ? [lengthTile(job.predicted)] : []),
      ...speed(job.speed),
      ...(job.points ? [tile("Points", number(job.points.price), job.points.refund === null ? `paid; ${number(job.points.used)} used so far` : `paid; ${number(job.points.refund)} refunded`)] : []),
      ...(job.points?.overrun_slots ? [tile("Overrun", `${number(job.points.overrun)} points`, `for ${number(job.points.overrun_slots)} slot${job.points.overrun_slots === 1 ? "" : "s"} beyond its stated work`)] : []),
      ...(job.generation || isOpen(job) ? [tile("Generation", number(job.generation), job.failures ? `${number(job.failures)} failed` : job.generation > 1 ? `moved ${job.generation - 1} time${job.generation === 2 ? "" : "s"}` : "")] : []),
    );
  }

  drawPace(job, points, where) {
    const { clock } = this.app.charts;
    const slotOf = (moment) => (new Date(moment) - new Date(where.origin)) / 1000 / where.slot_seconds;
    const began = slotOf(job.started ?? job.submitted);
    const reports = counted(job, points).map((point) => [slotOf(point.at), point.minibatches]);
    if (!reports.length && !(job.started && job.progress)) {
      this.pace.show(null);
      return;
    }
    const end = job.closed ? slotOf(job.closed) : where.now;
    // The progress of a job of one step, such as a plain command, is its run time.
    const percent = job.required === 1;
    const line = [[began, 0], ...reports.filter(([at]) => at >= began), [Math.max(end, reports.at(-1)?.[0] ?? 0), job.state === "finished" ? job.required : job.progress]];
    let maximum = 0;
    for (const point of line) {
      maximum = Math.max(maximum, point[1]);
      point[1] = maximum; // a restart repeats work, and the line shows the work that was done
    }
    const by = job.promise_slot === null ? null : job.promise_slot + 1;
    const pace = by === null ? [] : [[began, 0], [by, job.required]];
    const xs = positionsOf(line, pace);
    const series = [{ name: "done", colour: 2, values: xs.map((x) => valueAt(line, x)) }];
    if (pace.length) series.push({ name: "pace that keeps the promise", colour: 4, values: xs.map((x) => valueAt(pace, x)) });
    const marks = by === null ? [] : [{ x: by, name: "promised" }];
    if (isOpen(job) && where.now - began > 0.12 * (xs.at(-1) - began)) marks.push({ x: where.now, name: "now" });
    this.pace.caption.textContent = `${reports.length ? "What the job reported" : "It reported nothing: its progress is counted by time"}${by === null ? "." : "; the dashed line is the pace that keeps the promise."}`;
    this.pace.show({ kind: "slotLines", slots: true, x: xs, end: xs.at(-1) + 0.06 * (xs.at(-1) - xs[0]), x_label: clock.title, y_label: percent ? "share of the expected time" : "mini-batches", percent, y_high: percent ? 1 : undefined, series, marks, legend: true });
  }

  drawMetrics(points) {
    const values = new Map();
    for (const point of points) {
      for (const [name, value] of Object.entries(point.metrics)) {
        if (typeof value !== "number") continue;
        if (!values.has(name)) values.set(name, new Set());
        values.get(name).add(value);
      }
    }
    // Metrics that never changed are tiles, because their charts would be flat lines.
    const constant = [...values].filter(([, seen]) => seen.size === 1);
    swap(this.constants, ...constant.slice(0, CONSTANTS).map(([name, seen]) => tile(shown(name), number([...seen][0]), "the same in every report")));
    this.constants.hidden = !constant.length;
    for (const [name] of constant) {
      this.metricFigures.get(name)?.remove();
      this.metricFigures.delete(name);
    }
    const names = [...values].filter(([, seen]) => seen.size > 1).map(([name]) => name).slice(0, METRICS);
    for (const [at, name] of names.entries()) {
      if (!this.metricFigures.has(name)) {
        const figure = Object.assign(new Figure(this.app, shown(name)), { colour: at });
        this.metrics.append(figure.node);
        this.metricFigures.set(name, figure);
      }
      const figure = this.metricFigures.get(name), mine = points.filter((point) => typeof point.metrics[name] === "number");
      figure.show({ kind: "lines", x: mine.map((point) => Math.round(point.minibatches * 100) / 100), x_label: "mini-batches", y_label: shown(name), height: 220, series: [{ name: shown(name), colour: figure.colour, values: mine.map((point) => point.metrics[name]) }] });
    }
  }

  drawHistory({ events, omitted }) {
    const count = events.length + (omitted?.events ?? 0);
    const newest = events.slice(-200).reverse(), rows = [];
    for (let at = 0; at < newest.length; at += 1) {
      // More than three consecutive events of a kind are one row, such as moves of a promise in every slot.
      const run = newest.slice(at).findIndex((item) => item.kind !== newest[at].kind);
      const same = run < 0 ? newest.length - at : run;
      rows.push({ ...newest[at], more: same > 3 ? same - 1 : 0 });
      if (same > 3) at += same - 1;
    }
    swap(this.history, element("h2", {}, "History"), element("ol", { class: "history-list", reversed: true }, ...rows.map((event) => element("li", {},
      when(event.at, { brief: true, seconds: true }), element("span", { class: `badge ${TONES[event.kind] ?? "b-c7"}` }, event.kind), element("span", { class: "what" }, describeEvent(event, this.app.service), event.more ? element("span", { class: "soft" }, ` (and ${event.more} times before)`) : "")))),
    count > newest.length ? element("p", { class: "remark" }, `The ${newest.length} newest of ${number(count)} entries; shadowprice explain --full prints all.`) : null);
  }

  drawGenerations(rows) {
    const columns = [
      { head: "Generation", class: "num", cell: (row) => number(row.generation) },
      { head: "From slot", class: "num minor", cell: (row) => number(row.slot) },
      { head: "Workers", class: "num", cell: (row) => `${number(row.workers)}${row.ps ? ` + ${number(row.ps)} ps` : ""}` },
      { head: "On", cell: (row) => row.placement.slice(0, 6).map(({ server, workers, ps }) => `${server} (${workers}${ps ? `+${ps}` : ""})`).join(", ") + (row.placement.length > 6 ? ` and ${row.placement.length - 6} more` : "") },
      { head: "Began", cell: (row) => when(row.started, { brief: true, seconds: true }) },
      { head: "Ran", class: "num", cell: (row) => (row.started ? span(Math.max(1, Math.round((new Date(row.ended ?? now()) - new Date(row.started)) / 1000))) : "–") },
      { head: "Ended", class: "why", cell: (row) => (row.ended ? element("span", { class: "clip", title: row.reason ?? "" }, ended(row)) : row.started ? "runs" : "starting") },
    ];
    swap(this.generations, element("h2", {}, "Generations"), table("Generations, the newest first", columns, rows, { key: (row) => String(row.generation), none: isOpen(this.job) ? "It has not run yet." : "It never ran." }));
  }

  // ---------------------------------------------------------------- actions

  async cancel() {
    const { app, job } = this;
    const done = await app.form({
      title: `Cancel ${shown(this.name)}?`, danger: true, action: "Cancel the job",
      body: [element("p", {}, job.servers.length ? "Its processes are stopped within their grace period, and its progress is lost." : "It leaves the queue and loses its promise."), element("p", {}, "This can't be undone.")],
      send: () => request(`jobs/${part(this.reference)}`, { method: "DELETE" }),
    });
    if (done) await app.did(`${shown(this.name)} is cancelled`);
  }

  async revise() {
    const { app, job: { spec } } = this;
    const { fields, changes } = spec.utility ? revisionOfJob(spec) : revisionOfCommand(spec);
    const done = await app.form({
      title: `Revise ${shown(this.name)}`, action: "Revise it", fields,
      body: [element("p", { class: "soft" }, "Its promise is computed again. Changes apply from the next slot on.")],
      send: (values) => {
        const changed = changes(values);
        if (!Object.keys(changed).length) throw new Error("nothing was changed");
        return request(`jobs/${part(this.reference)}`, { method: "PATCH", body: changed });
      },
    });
    if (done) {
      this.spec.replaceChildren();
      await app.did(`${shown(this.name)} is revised`);
    }
  }

  close() {
    this.logs.close();
  }
}

/** Return the form's fields for a job that states its utility, and the function that reads the changes. */
function revisionOfJob(spec) {
  const { utility } = spec;
  const work = spec.steps ? [["steps", "Steps"]] : [["minibatches", "Mini-batches of a chunk"], ["epochs", "Epochs"]];
  const fields = [
    utility.kind === "deadline" ? { name: "deadline", label: "Deadline", value: String(utility.by ?? ""), hint: "Time from the submission, such as 4h" } : null,
    { name: "utility", label: "Utility", type: "area", rows: 4, value: JSON.stringify(utility, null, 1), hint: "Utility of the completion time, as JSON" },
    ...work.map(([name, label]) => ({ name, label, type: "number", value: String(spec[name] ?? 1) })),
  ].filter(Boolean);
  const changes = (values) => {
    const changed = {};
    if (values.deadline !== undefined && values.deadline !== String(utility.by ?? "")) changed.deadline = values.deadline;
    const wanted = json(values.utility);
    if (JSON.stringify(wanted) !== JSON.stringify(utility)) changed.utility = wanted;
    for (const [key] of work) {
      if (values[key] !== "" && Number(values[key]) !== (spec[key] ?? 1)) changed[key] = Number(values[key]);
    }
    return changed;
  };
  return { fields, changes };
}

/** Return the form's fields, and the function that reads the changes, for a job with the default utility, such as a command. */
function revisionOfCommand(spec) {
  const { steps = 1 } = spec, runs = ["steps", "epochs", "chunks", "minibatches"].reduce((product, key) => product * (spec[key] ?? 1), 1);
  const before = { by: spec.by ?? "", priority: spec.priority ?? "", walltime: spec.walltime ?? "" };
  const fields = [
    { name: "by", label: "Deadline", value: before.by, hint: "Such as 6h from the submission, 18:00 or 2026-11-23 18:00; empty for none" },
    { name: "priority", label: "Priority", options: PRIORITIES, value: before.priority },
    { name: "time", label: "Expected run time", placeholder: "3h", hint: "Of the whole job; empty for no change" },
    { name: "walltime", label: "Time limit", value: before.walltime, hint: "Such as 8h; empty for none" },
    steps > 1 ? { name: "steps", label: "Steps", type: "number", value: String(steps) } : null,
  ].filter(Boolean);
  const changes = (values) => {
    const changed = {}, errors = [];
    for (const key of Object.keys(before)) {
      if (values[key] !== before[key]) changed[key] = (key === "by" ? absoluteMoment(values.by) : values[key]) || null;
    }
    if (values.steps && Number(values.steps) !== steps) changed.steps = Number(values.steps);
    if (values.time) changed.minibatch_time = timePerStep(values.time, runs / steps * (changed.steps ?? steps), (location, message, hint) => errors.push({ location, message, hint }));
    if (errors.length) throw Object.assign(new Error("the form has problems"), { errors });
    return changed;
  };
  return { fields, changes };
}

const TONES = { admitted: "b-c2", running: "b-c2", finished: "b-done", started: "b-c0", resized: "b-c0", moved: "b-c1", standby: "b-c1", retrying: "b-c1", lost: "b-c1", overrun: "b-c1", broken: "b-c4", refused: "b-c4", failed: "b-c4", "given-up": "b-c4" };

/** Return a tile with the origin of a job's speed, in an array; empty if the speed is as stated. */
function speed(estimate) {
  const measured = estimate?.measured ?? [];
  const remark = measured.length ? `measured with ${measured.map((item) => number(item)).join(", ")} worker${measured.length === 1 && measured[0] === 1 ? "" : "s"}` : "not measured yet";
  if (estimate?.source === "family") return [tile("Speed", "estimated", `from the family ${shown(estimate.family)}; ${remark}`)];
  return measured.length ? [tile("Speed", "measured", remark)] : [];
}

function ended(generation) {
  const [first] = String(generation.reason ?? "").split("\n");
  return first || (generation.exit === null ? "ended" : `exit status ${generation.exit}`);
}

function json(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`that is not JSON: ${error.message}`);
  }
}

/** Return a line of a log without escape sequences and overwritten text, as a terminal would show it. */
function clean(line) {
  const bare = line.replace(/\u001b\[[0-?]*[ -/]*[@-~]/g, "");
  return bare.slice(bare.lastIndexOf("\r", bare.length - 2) + 1).replaceAll("\r", "").replaceAll("\t", "    ");
}

/** The logs of a job's processes: the end of one log, followed while the process runs. */
class Logs {
  constructor(app, reference) {
    this.app = app;
    this.reference = reference;
    this.pieces = []; // consecutive pieces of the log
    this.which = element("select", { "aria-label": "Generation", onchange: () => this.choose() });
    this.process = element("select", { "aria-label": "Process", onchange: () => this.choose() });
    this.following = element("input", { type: "checkbox", id: "follow", onchange: () => { if (this.following.checked) this.reset(); } });
    this.following.checked = true;
    this.earlier = button("Earlier", () => this.back());
    this.pre = element("pre", { class: "log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Log" });
    this.remark = element("p", { class: "remark" });
    this.node = element("section", { hidden: true }, element("div", { class: "row wrap" }, element("h2", {}, "Log"), element("span", { class: "grow" }), this.which, this.process, this.earlier,
      element("label", { for: "follow", class: "inline" }, this.following, " follow")), this.pre, this.remark);
  }

  /** Show the newest generation that started; `failed` is the process to show first, or undefined for the first worker. */
  setGenerations(generations, open, failed) {
    const started = generations.filter((item) => item.started);
    this.failed = failed;
    this.open = open;
    this.node.hidden = !started.length || this.app.service.observes;
    if (this.node.hidden) return;
    const numbers = started.map((item) => item.generation).join();
    if (numbers !== this.numbers) {
      const newest = this.numbers === undefined || this.which.selectedIndex <= 0;
      const before = this.which.value;
      this.numbers = numbers;
      this.started = started;
      this.which.replaceChildren(...started.map((item) => element("option", { value: String(item.generation) }, `generation ${item.generation}`)));
      if (!newest) this.which.value = before;
      if (newest || this.which.value !== before) this.choose();
    }
    if (!this.timer) this.poll();
  }

  choose() {
    const generation = this.started.find((each) => String(each.generation) === this.which.value) ?? this.started[0];
    const before = this.process.value;
    const names = [...Array.from({ length: Math.min(generation.workers, 500) }, (_, at) => `worker-${at}`), ...Array.from({ length: Math.min(generation.ps, 500) }, (_, at) => `ps-${at}`)];
    this.process.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    const preferred = before || this.failed;
    if (names.includes(preferred)) this.process.value = preferred;
    this.following.checked = true;
    this.reset();
  }

  /** Show the end of the log. */
  reset() {
    this.pieces = [];
    this.pre.replaceChildren();
    this.complete = false;
    this.poll();
  }

  /** The chosen generation and process. */
  get choice() {
    return `${this.which.value} ${this.process.value}`;
  }

  #request(query) {
    return request(`jobs/${part(this.reference)}/logs`, { query: { generation: this.which.value, process: this.process.value, max_bytes: PIECE, ...query } });
  }

  async poll() {
    clearTimeout(this.timer);
    this.timer = null;
    if (this.closed || !this.process.value) return;
    const { choice, pieces } = this;
    try {
      if (!document.hidden && !this.complete && this.following.checked) {
        const end = pieces.at(-1)?.end;
        const piece = await this.#request(end === undefined ? {} : { start: end });
        if (this.closed || choice !== this.choice || pieces !== this.pieces || !this.following.checked) return;
        if (end !== pieces.at(-1)?.end) return; // a concurrent poll appended the piece
        this.complete = piece.complete && piece.end === (end ?? piece.end);
        if (piece.end !== end) this.#append(piece);
        this.remark.textContent = this.complete ? "The process has ended; the log is complete." : "";
      }
    } catch (problem) {
      if (this.closed || choice !== this.choice) return;
      this.remark.textContent = problem.status === 404 ? "It has no log, or its log was deleted." : problem.message;
      if (problem.status === 404) this.complete = true;
    }
    this.earlier.disabled = !this.pieces[0]?.start;
    if (this.following.checked && !this.complete) this.timer = setTimeout(() => this.poll(), 1000);
  }

  #append(piece) {
    const atEnd = this.pre.scrollTop + this.pre.clientHeight >= this.pre.scrollHeight - 30;
    this.pieces.push(piece);
    while (this.#size() > KEPT) this.pieces.shift();
    this.#draw();
    if (atEnd) this.pre.scrollTop = this.pre.scrollHeight;
  }

  #size() {
    return this.pieces.length > 1 ? this.pieces.reduce((sum, piece) => sum + piece.text.length, 0) : 0;
  }

  #draw() {
    const text = this.pieces.map((piece) => piece.text).join("");
    this.pre.textContent = text.split("\n").map((line) => shown(clean(line))).join("\n");
  }

  /** Show the previous piece, and stop following, because the end may be dropped. */
  async back() {
    this.following.checked = false;
    const { choice, pieces } = this, before = pieces[0].start, start = Math.max(0, before - PIECE);
    this.earlier.disabled = true;
    try {
      const piece = await this.#request({ start, max_bytes: before - start });
      if (this.closed || choice !== this.choice || pieces !== this.pieces) return;
      pieces.unshift({ ...piece, start });
      while (this.#size() > KEPT) pieces.pop();
      this.#draw();
      this.pre.scrollTop = 0;
    } catch (problem) {
      this.remark.textContent = problem.message;
    }
    this.earlier.disabled = !this.pieces[0]?.start;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}
