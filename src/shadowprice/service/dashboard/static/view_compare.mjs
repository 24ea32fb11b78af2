// The curves of two jobs in one chart each, from the start of each job: progress, throughput and common metrics.

import { request, now, part } from "./api.mjs";
import { counted, positionsOf, valueAt } from "./curves.mjs";
import { badge, CLOSED, element, empty, Figure, jobLink, OPEN, shown, swap, to, problemNote } from "./parts.mjs";

const UNITS = [["days", 1440, 4320], ["hours", 60, 180], ["minutes", 1, 0]]; // name, minutes, and minimum minutes of an axis in the unit
const POINTS = 500; // maximum number of reports of each job
const PIECES = 60; // maximum number of points of a throughput curve
const METRICS = 6; // maximum number of charts of metrics
const CHOICES = 200; // maximum number of open jobs that are suggested

export class CompareView {
  constructor(app, names) {
    this.app = app;
    this.names = names.filter(Boolean).slice(0, 2);
    this.title = "Compare jobs";
    this.drawn = new Map(); // figures by key
    const [first = "", second = ""] = this.names;
    this.choices = element("datalist", { id: "open-jobs" });
    this.inputs = [first, second].map((name, at) => element("input", { type: "search", value: name, list: "open-jobs", "aria-label": at ? "Second job" : "First job", autocomplete: "off", spellcheck: "false", required: true }));
    const form = element("form", { class: "row" }, this.inputs[0], element("span", { class: "soft" }, "and"), this.inputs[1], element("button", { type: "submit", class: "primary" }, "Compare"), this.choices);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      location.hash = to("compare", ...this.inputs.map((input) => input.value.trim())).slice(1);
    });
    this.jobs = element("div", { class: "row" });
    this.figures = element("div", { class: "grid2" });
    this.place = element("div", {});
    this.node = element("div", {}, form, this.jobs, this.place, this.figures);
  }

  async refresh() {
    const response = await request("jobs", { query: { state: OPEN.join(","), limit: CHOICES } });
    this.choices.replaceChildren(...response.jobs.map((job) => element("option", { value: job.name })));
    if (this.names.length < 2) {
      swap(this.place, empty("Choose two jobs", "Their progress, throughput and metrics are drawn together, from the start of each."));
      return;
    }
    try {
      this.draw(await Promise.all(this.names.map(async (name) => {
        const [job, curve] = await Promise.all([request(`jobs/${part(name)}`), request(`jobs/${part(name)}/progress`, { query: { limit: POINTS } })]);
        return { job, points: curve.points };
      })));
    } catch (problem) {
      if (problem.status !== 404 && problem.status !== 422) throw problem;
      swap(this.jobs);
      swap(this.place, problemNote(problem)); // the user can correct an unknown or ambiguous name
      for (const figure of this.drawn.values()) figure.show(null);
    }
  }

  draw(curves) {
    const names = curves.map(({ job }) => job.name);
    this.shownNames = new Set(names).size < names.length ? this.names : names; // for equal names, the references that were given
    swap(this.jobs, ...curves.flatMap(({ job }, at) => [element("span", { class: "key whole" }, element("i", { class: `swatch c${at}`, "aria-hidden": "true" }), jobLink(job.name, job.id), badge(job.state))]));
    const progress = curves.map(({ job, points }) => progressOf(job, points));
    const shares = curves.map(({ job, points }) => progressOf(job, counted(job, points)));
    const longest = Math.max(0, ...progress.flat().map(([x]) => x));
    const [unit, minutes] = UNITS.find(([, , above]) => longest >= above);
    const x_label = `${unit} since its start`, scaled = (line) => line.map(([x, y]) => [x / minutes, y]);
    const any = progress.some((line) => line.length > 1);
    swap(this.place, any ? null : empty("No progress yet", "The curves appear as soon as one of the jobs reports progress."));
    this.lines("progress", "Progress", "share of the work", shares.map((line, at) => scaled(line).map(([x, y]) => [x, curves[at].job.required ? Math.min(1, y / curves[at].job.required) : 0])), { percent: true, y_high: 1, x_label });
    this.lines("throughput", "Throughput", "mini-batches per second", progress.map((line, at) => scaled(throughputOf(ended(curves[at].job, line)))), { x_label });
    const metrics = curves.map(({ points }) => new Set(points.flatMap((point) => Object.keys(point.metrics))));
    const varies = (name) => curves.some(({ points }) => new Set(points.map((point) => point.metrics[name]).filter((value) => value !== undefined)).size > 1);
    const both = [...metrics[0]].filter((name) => metrics[1].has(name) && varies(name)).slice(0, METRICS);
    for (const name of both) {
      const lines = curves.map(({ points }) => points.filter((point) => typeof point.metrics[name] === "number").map((point) => [point.minibatches, point.metrics[name]]));
      this.lines(`metric ${name}`, shown(name), shown(name), lines.map(rising), { x_label: "mini-batches" });
    }
  }

  /** Draw a chart of the two jobs' lines; a chart without lines is hidden. */
  lines(key, title, y_label, lines, more) {
    if (!this.drawn.has(key)) {
      this.drawn.set(key, new Figure(this.app, title));
      this.figures.append(this.drawn.get(key).node);
    }
    const xs = positionsOf(...lines);
    const series = lines.map((line, at) => ({ name: shown(this.shownNames[at]), colour: at, values: xs.map((x) => valueAt(line, x)) }));
    const description = { kind: "lines", x: xs.map((x) => Math.round(x * 1000) / 1000), y_label, legend: true, height: 260, series, ...more };
    this.drawn.get(key).show(xs.length < 2 ? null : description);
  }
}

/** Return a line of progress without its last point, which is the present or the end, not a report. */
const ended = (job, line) => (CLOSED.includes(job.state) && line.length < 3 ? line : line.slice(0, -1));

/** Return points [minutes since the start, mini-batches] of a job, from 0 to now or its end; their values never fall. */
function progressOf(job, points) {
  if (!job.started) return [];
  const minutes = (moment) => (new Date(moment) - new Date(job.started)) / 60_000;
  const end = job.state === "finished" ? [minutes(job.closed), job.required] : [job.closed ? minutes(job.closed) : (now() - new Date(job.started)) / 60_000, job.progress];
  const line = rising([[0, 0], ...points.map((point) => [minutes(point.at), point.minibatches]).filter(([x]) => x > 0), end]);
  let maximum = 0;
  return line.map(([x, y]) => [x, maximum = Math.max(maximum, y)]);
}

/** Return a line without points that don't come after all earlier points. */
function rising(line) {
  const kept = [];
  for (const point of line) if (!kept.length || point[0] > kept.at(-1)[0]) kept.push(point);
  return kept;
}

/** Return points [minutes, mini-batches per second]: the mean speeds of consecutive pieces of a line of progress. */
export function throughputOf(line) {
  const step = Math.max(1, Math.ceil((line.length - 1) / PIECES)), rates = [];
  for (let from = 0; from + 1 < line.length; from += step) {
    const to_ = Math.min(line.length - 1, from + step);
    const [x0, y0] = line[from], [x1, y1] = line[to_];
    rates.push([(x0 + x1) / 2, (y1 - y0) / (60 * (x1 - x0))]);
  }
  return rates;
}
