// Jobs and servers of a run: the job list with its Gantt chart, a job's history, a server's timeline.

import { Chart } from "./charts.mjs";
import { element } from "./dom.mjs";
import { number } from "./format.mjs";
import { liveTable } from "./tables.mjs";

const MAX_SERVERS = 40; // drawn for one job

/**
 * Job histories of a page, as `histories_data` in section_job_histories.py writes them.
 *
 * `data.jobs` has a column per property, and `at` is the position of a job in these columns. `data.ran` and
 * `data.plan` have placements, ordered by job.
 */
export class Histories {
  constructor(data) {
    this.data = data;
    this.count = data.jobs.job.length;
    this.at = new Map(data.jobs.job.map((name, at) => [name, at]));
    this.ran = firstRows(data.ran.job, this.count);
    this.plan = firstRows(data.plan.job, this.count);
    this.outcomes = new Map(data.outcomes.map(([key, label, colour]) => [key, { label, colour }]));
  }

  of(column, at) {
    return this.data.jobs[column]?.[at] ?? null;
  }

  /** Return a job's placements, {server, workers, ps, from, to}, as it ran or as it was planned. */
  runs(which, at) {
    // Only plans that weren't kept are stored.
    if (which === "plan" && this.of("planned", at) === 1) return this.runs("ran", at);
    const rows = this.data[which], index = which === "plan" ? this.plan : this.ran, placements = [];
    for (let row = index[at]; row < index[at + 1]; row += 1) {
      placements.push({ server: rows.server[row], workers: rows.workers[row], ps: rows.ps[row], from: rows.slot[row], to: rows.slot[row] + rows.slots[row] });
    }
    return placements;
  }

  /** Return the promised completion slots of a job, in the order of its promises. */
  promises(at) {
    const { job, slot } = this.data.promises ?? { job: [] };
    return job.flatMap((each, row) => (each === at ? [slot[row]] : []));
  }

  /** Return a job's numbers of processes over time: {from, to, workers, ps, servers}. */
  widths(which, at) {
    const runs = this.runs(which, at), cuts = [...new Set(runs.flatMap((run) => [run.from, run.to]))].sort((a, b) => a - b);
    const steps = new Map(cuts.map((cut) => [cut, [0, 0, 0]]));
    for (const run of runs) {
      for (const [cut, sign] of [[run.from, 1], [run.to, -1]]) {
        const step = steps.get(cut);
        step[0] += sign * run.workers;
        step[1] += sign * run.ps;
        step[2] += sign;
      }
    }
    const spans = [], now = [0, 0, 0];
    cuts.forEach((from, position) => {
      steps.get(from).forEach((step, each) => { now[each] += step; });
      const last = spans.at(-1);
      if (!now[2]) return;
      const to = cuts[position + 1];
      if (last && last.to === from && last.workers === now[0] && last.ps === now[1]) last.to = to;
      else spans.push({ from, to, workers: now[0], ps: now[1], servers: now[2] });
    });
    return spans;
  }
}

/** Return the index of each job's first row, in rows that are ordered by job. */
function firstRows(jobs, count) {
  const index = new Int32Array(count + 1);
  for (const job of jobs) index[job + 1] += 1;
  for (let at = 0; at < count; at += 1) index[at + 1] += index[at];
  return index;
}

function style(histories, at) {
  const outcome = histories.of("outcome", at), late = histories.of("late", at);
  return outcome === "finished" && late !== null && late > 0 ? "late" : outcome;
}

/** Return the description of a Gantt chart of jobs; `rows` are their positions. */
export function jobsGantt(histories, rows, extent) {
  const bars = [], used = new Set();
  rows.forEach((at, row) => {
    const name = histories.of("job", at), look = style(histories, at);
    const [arrival, start] = [histories.of("arrival", at), histories.of("start", at)];
    const add = (bar) => { used.add(bar.style); bars.push({ row, name, pick: at, ...bar }); };
    const widths = histories.widths("ran", at);
    if (start === null) {
      const open = look === "waiting" ? Math.max(extent[1], arrival + 1) : arrival + 1;
      add({ style: look === "waiting" ? "wait" : look, from: arrival, to: open, text: histories.outcomes.get(look)?.label ?? look });
      return;
    }
    if (start > arrival) add({ style: "wait", from: arrival, to: start, text: "" });
    widths.forEach((width, each) => {
      const before = widths[each - 1];
      if (before && before.to < width.from) add({ style: "wait", from: before.to, to: width.from, text: "" });
      add({ style: look, from: width.from, to: width.to, text: describeWidth(width), label: String(width.workers || width.ps) });
    });
  });
  // The axis only covers the drawn jobs, which may be a short part of a long run.
  const first = bars.reduce((minimum, bar) => Math.min(minimum, bar.from), bars.length ? Infinity : extent[0]);
  const last = bars.reduce((maximum, bar) => Math.max(maximum, bar.to), bars.length ? 0 : extent[1]);
  const legend = [
    ...histories.data.outcomes.map(([key, label, colour]) => ({ style: key, name: key === "finished" ? "ran, finished" : label, colour, look: "full" })),
    { style: "late", name: "ran, finished late", colour: 1, look: "full" },
    { style: "wait", name: "waits", colour: 7, look: "thin" },
  ].filter((entry) => used.has(entry.style));
  return { kind: "gantt", label: "Jobs over time", rows: rows.map((at) => histories.of("job", at)), bars, legend, first, last };
}

function describeWidth({ workers, ps }) {
  const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
  return [workers ? count(workers, "worker") : "", ps ? count(ps, "parameter server") : ""].filter(Boolean).join(", ");
}

/** Merge marks at the same position, so that their names don't overlap. */
function mergeMarks(marks) {
  const names = new Map();
  for (const { x, name } of marks) names.set(x, [...(names.get(x) ?? []), name]);
  return [...names].map(([x, each]) => ({ x, name: each.join(", ") }));
}

/** Fill the section of all jobs: filters, the table, and the Gantt chart of its visible rows. */
export function jobsSection(host, histories, page, columns, extent) {
  const chartHost = element("div", { class: "chart" });
  const box = element("div", { class: "table" });
  const choices = new Map();
  for (const outcome of histories.data.jobs.outcome) choices.set(outcome, (choices.get(outcome) ?? 0) + 1);
  const chips = element("div", { class: "chips", role: "group", "aria-label": "Show jobs by outcome" });
  host.replaceChildren(chips, element("figure", {}, element("h3", {}, "The jobs of the table below"), chartHost,
    element("figcaption", {}, "A bar covers slots in which the job ran, with its workers; a thin line shows waiting. Select a job for its history.")), box);
  let chart = null, table = null, chosen = null;
  const fill = () => {
    const rows = [], picks = [];
    for (let at = 0; at < histories.count; at += 1) {
      if (chosen !== null && histories.of("outcome", at) !== chosen) continue;
      rows.push(columns.map((column) => column.outcome ? histories.outcomes.get(histories.of("outcome", at))?.label ?? histories.of("outcome", at) : histories.of(column.key, at)));
      picks.push(at);
    }
    const show = (visible) => {
      const description = jobsGantt(histories, visible.map((row) => picks[row]), extent);
      if (chart) chart.update(description);
      else chart = new Chart(chartHost, description, page, { eager: false });
    };
    table = liveTable(box, columns, rows, { size: 20, page, picks, onshow: show });
  };
  const chip = (key, label, count) => element("button", {
    type: "button", "aria-pressed": String(chosen === key),
    onclick: () => { chosen = key; draw(); fill(); },
  }, `${label} `, element("b", {}, count.toLocaleString("en")));
  const draw = () => chips.replaceChildren(chip(null, "all", histories.count), ...[...choices].map(([key, count]) => chip(key, histories.outcomes.get(key)?.label ?? key, count)));
  draw();
  fill();
  return { find: (words) => table.filter(words) };
}

/** Dialog with the history of one job. */
export class HistoryDialog {
  constructor(histories, page, prices) {
    this.histories = histories;
    this.page = page;
    this.prices = prices;
    this.charts = [];
    this.title = element("h2", { id: "history-title", tabindex: "-1" });
    this.body = element("div", { class: "history" });
    this.dialog = element("dialog", { "aria-labelledby": "history-title" },
      element("div", { class: "bar" }, this.title, element("button", { type: "button", class: "close", onclick: () => this.dialog.close() }, "Close")), this.body);
    this.dialog.addEventListener("click", (event) => { if (event.target === this.dialog) this.dialog.close(); });
    this.dialog.addEventListener("close", () => this.#closed());
    document.body.append(this.dialog);
  }

  open(at) {
    this.#clear();
    const { histories } = this, name = histories.of("job", at);
    const look = style(histories, at), outcome = histories.outcomes.get(histories.of("outcome", at));
    const verdict = look === "late" ? "finished late" : outcome?.label ?? histories.of("outcome", at);
    this.title.replaceChildren(name, " ", element("span", { class: `verdict c${look === "late" ? 1 : outcome?.colour ?? 7}` }, verdict));
    const advice = histories.of("advisable", at) && !histories.of("advised", at)
      ? [element("p", { class: "remark" }, element("code", {}, "shadowprice explain RUN JOB"), " finds changes that get it admitted.")] : [];
    this.body.replaceChildren(...this.#facts(at), ...advice, ...this.#drawn(at));
    if (!this.dialog.open) this.dialog.showModal();
    this.dialog.scrollTop = 0;
    this.title.focus();
    for (const [host, description] of this.waiting) this.charts.push(new Chart(host, description, this.page));
    const hash = `#job=${encodeURIComponent(name)}`;
    if (location.hash !== hash) history.replaceState(null, "", hash);
  }

  #facts(at) {
    const chapters = [[]];
    for (const [label, text] of this.histories.data.facts[at]) {
      if (!label && !text) chapters.push([]);
      else chapters.at(-1).push(element("dt", {}, label), element("dd", {}, text));
    }
    return chapters.filter((rows) => rows.length).map((rows) => element("dl", {}, ...rows));
  }

  #drawn(at) {
    this.waiting = [];
    const { histories } = this, parts = [];
    const ran = histories.runs("ran", at), plan = histories.runs("plan", at), planned = histories.of("planned", at);
    if (!ran.length && !plan.length) return [];
    const marks = [{ x: histories.of("arrival", at), name: "arrives" }];
    const target = histories.of("target", at);
    if (target !== null) marks.push({ x: histories.of("arrival", at) + target + 1, name: "target" });
    const ends = [...ran, ...plan].map((run) => run.to), begin = histories.of("arrival", at);
    const reach = begin + 2 * (Math.max(...ends, marks.at(-1).x) - begin);
    // Mark the first and the last promise; the text above lists all. A promise far ahead isn't marked, because it
    // would compress the chart: a job whose utility is constant may have one.
    const promises = histories.promises(at), last = promises.at(-1) + 1;
    if (promises.length > 1 && promises[0] + 1 <= reach) marks.push({ x: promises[0] + 1, name: "first promise" });
    if (promises.length && last <= reach) marks.push({ x: last, name: promises.length > 1 ? "last promise" : "promise" });
    const extent = [begin, Math.max(...ends, ...marks.map((mark) => mark.x))];
    const figure = (title, description, remark) => {
      const host = element("div", { class: "chart" });
      this.waiting.push([host, description]);
      parts.push(element("figure", {}, element("h3", {}, title), host, remark ? element("figcaption", {}, remark) : null));
    };
    const servers = [...new Set([...ran, ...plan].map((run) => run.server))];
    const shown = servers.slice(0, MAX_SERVERS), row = new Map(shown.map((server, each) => [server, each]));
    const bars = (runs, look) => runs.filter((run) => row.has(run.server)).map((run) => ({
      row: row.get(run.server), from: run.from, to: run.to, style: look, text: describeWidth(run), label: [run.workers ? `${run.workers} w` : "", run.ps ? `${run.ps} ps` : ""].filter(Boolean).join(" + "),
    }));
    const how = planned === 1 ? "It ran as planned." : planned === 2 ? "It ran differently from its last plan, which is dashed." : "";
    const left = servers.length > shown.length ? ` ${shown.length} of its ${servers.length} servers are drawn.` : "";
    figure("Placements", {
      kind: "gantt", label: "Servers of the job over time", rows: shown.map((server) => histories.data.servers[server]), first: extent[0], last: extent[1], marks: mergeMarks(marks),
      bars: [...bars(ran, "ran"), ...(planned ? bars(plan, "plan") : [])],
      legend: [{ style: "ran", name: "ran", colour: 0, look: "full" }, ...(planned ? [{ style: "plan", name: "planned", colour: 1, look: "outline" }] : [])],
    }, `Bars carry workers (w) and parameter servers (ps). ${how}${left}`);
    figure("Workers", this.#workers(at, extent, mergeMarks(marks), planned));
    const price = this.#prices(extent, mergeMarks(marks));
    if (price) figure("Posted prices meanwhile", price, "The mean over servers, when each slot began.");
    const paid = this.#payments(at);
    if (paid) parts.push(paid);
    return parts;
  }

  #workers(at, [first, last], marks, planned) {
    const series = [["workers that ran", "ran", "workers", 0], ["parameter servers that ran", "ran", "ps", 2], ...(planned === 2 ? [["workers planned", "plan", "workers", 4]] : [])];
    const cuts = [...new Set([first, ...series.flatMap(([, which]) => this.histories.widths(which, at).flatMap((width) => [width.from, width.to]))])].filter((cut) => cut <= last).sort((a, b) => a - b);
    const values = (which, what) => {
      const widths = this.histories.widths(which, at);
      return cuts.map((cut) => widths.find((width) => width.from <= cut && cut < width.to)?.[what] ?? 0);
    };
    const lines = series.map(([name, which, what, colour]) => ({ name, colour, values: values(which, what) })).filter((line) => line.values.some(Boolean));
    return { kind: "slotLines", slots: true, steps: true, fill: true, x: cuts, end: last, x_label: "slot", y_label: "workers", height: 150, legend: true, series: lines, marks };
  }

  #prices([first, last], marks) {
    const d = this.prices;
    if (!d) return null;
    const xs = Array.isArray(d.x) ? d.x : Array.from({ length: d.x.count }, (_, at) => d.x.first + at * d.x.step);
    const begin = Math.max(0, xs.findLastIndex((x) => x <= first)), end = xs.findIndex((x) => x >= last);
    const cut = (values) => values.slice(begin, end < 0 ? undefined : Math.max(end, begin + 1));
    const shown = cut(xs);
    shown[0] = Math.max(shown[0], first);
    return { ...d, x: shown, end: last, height: 150, marks, series: d.series.map((line) => ({ ...line, values: cut(line.values) })), remark: undefined };
  }

  /** Return a table of a job's payments by payee, or of its plan's price; null if it has neither. */
  #payments(at) {
    const { job, payee, amount } = this.histories.data.payments ?? { job: [] };
    const rows = job.flatMap((each, row) => (each === at ? [[`to ${payee[row] ?? "the cluster"}`, amount[row]]] : []));
    const cost = this.histories.of("cost", at), ran = this.histories.of("worker_slots", at);
    if (!rows.length && cost !== null && this.histories.of("planned", at)) {
      rows.push(["for its plan, at the prices of its admission", cost]);
      if (ran) rows.push(["for each worker-slot of it, on average", cost / ran]);
    }
    if (!rows.length) return null;
    const box = element("div", { class: "table" });
    liveTable(box, [{ heading: "paid" }, { heading: "utility", numeric: true }], rows, { size: 10, page: this.page });
    return element("div", {}, element("h3", {}, "Prices paid"), box);
  }

  #clear() {
    for (const chart of this.charts) chart.dispose();
    this.charts = [];
    this.waiting = [];
  }

  #closed() {
    this.#clear();
    if (location.hash.startsWith("#job=")) history.replaceState(null, "", location.pathname + location.search);
  }
}

/** Timeline of one server: the jobs that ran on it, its load and its price. */
export class ServerTimeline {
  constructor(host, histories, page, heats, extent) {
    Object.assign(this, { host, histories, page, heats, extent, charts: [] });
    const { servers } = histories.data;
    this.select = element("select", { id: "server-choice", onchange: () => this.show(Number(this.select.value)) },
      ...servers.map((name, at) => element("option", { value: String(at) }, name)));
    this.figure = element("div");
    host.replaceChildren(element("div", { class: "choose" }, element("label", { for: "server-choice" }, "Server "), this.select), this.figure);
    this.show(this.#busiest());
  }

  #busiest() {
    const { server, slots } = this.histories.data.ran, sums = new Map();
    server.forEach((each, row) => sums.set(each, (sums.get(each) ?? 0) + slots[row]));
    return [...sums].reduce((best, pair) => (pair[1] > best[1] ? pair : best), [0, -1])[0];
  }

  show(server, jump = false) {
    for (const chart of this.charts) chart.dispose();
    this.charts = [];
    this.select.value = String(server);
    const { data } = this.histories, lanes = [], bars = [], ran = data.ran;
    const rows = [...ran.server.keys()].filter((row) => ran.server[row] === server).sort((a, b) => ran.slot[a] - ran.slot[b] || ran.job[a] - ran.job[b]);
    for (const row of rows) {
      const from = ran.slot[row], to = from + ran.slots[row], at = ran.job[row];
      let lane = lanes.findIndex((lane) => lane.to <= from && lane.job === at);
      if (lane < 0) lane = lanes.findIndex((lane) => lane.to <= from);
      if (lane < 0) lane = lanes.push({ to: 0, job: -1 }) - 1;
      lanes[lane] = { to, job: at };
      bars.push({ row: lane, from, to, style: `c${at % 7}`, name: this.histories.of("job", at), label: this.histories.of("job", at), pick: at, text: describeWidth({ workers: ran.workers[row], ps: ran.ps[row] }) });
    }
    const host = element("div", { class: "chart" }), name = data.servers[server];
    const left = data.jobs.job.length < data.total ? ` Jobs without a history in this page (${(data.total - data.jobs.job.length).toLocaleString("en")} of ${data.total.toLocaleString("en")}) only appear in the load.` : "";
    const parts = [element("figure", {}, element("h3", {}, `Jobs on ${name}`), host,
      element("figcaption", {}, `${bars.length.toLocaleString("en")} placements. Colours only tell neighbours apart.${left}`))];
    const waiting = [[host, {
      kind: "gantt", label: `Jobs on ${name}`, rows: lanes.map((_, at) => String(at + 1)), nameless: true, bars, first: this.extent[0], last: this.extent[1], drawn: "lanes",
      legend: [], styles: Array.from({ length: 7 }, (_, at) => ({ style: `c${at}`, name: "", colour: at, look: "full" })),
    }]];
    for (const heat of this.heats) {
      const row = Math.floor(server / heat.group);
      const values = Array.from({ length: heat.bins }, (_, bin) => heat.value(row * heat.bins + bin));
      if (values.every((value) => value === null)) continue;
      const under = element("div", { class: "chart" });
      const who = heat.group > 1 ? `${heat.names[row]} and ${heat.group - 1} after it, on average` : name;
      parts.push(element("figure", {}, element("h3", {}, `${heat.title} of ${who}`), under));
      waiting.push([under, {
        kind: "slotLines", slots: true, steps: true, fill: true, percent: heat.percent, y_high: heat.percent ? 1 : undefined, x: { first: heat.first, step: heat.bin, count: heat.bins },
        end: this.extent[1], x_label: "slot", y_label: heat.what, height: 140, series: [{ name: heat.what, colour: heat.percent ? 0 : 4, values }],
      }]);
    }
    this.figure.replaceChildren(...parts);
    for (const [under, description] of waiting) this.charts.push(new Chart(under, description, this.page, { eager: jump }));
    if (jump) {
      this.host.scrollIntoView({ block: "start" });
      this.select.focus({ preventScroll: true });
    }
  }
}
