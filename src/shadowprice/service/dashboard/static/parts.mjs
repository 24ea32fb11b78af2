// Small parts of views: states, times, tiles, tables, pagers. Values are inserted as text, never as HTML.

import { Chart } from "./charts/charts.mjs";
import { element, shown } from "./charts/dom.mjs";
import { number, span } from "./charts/format.mjs";
import { now } from "./api.mjs";

export { element, shown, number, span };

/** Names, colours and meanings of a job's states. */
export const STATES = {
  pending: { name: "pending", colour: "c7", meaning: "accepted, not decided yet" },
  admitted: { name: "admitted", colour: "c0", meaning: "has a promise, does not run yet" },
  standby: { name: "standby", colour: "c1", meaning: "waits without a promise" },
  running: { name: "running", colour: "c2", meaning: "runs" },
  resizing: { name: "resizing", colour: "c2", meaning: "moves from one placement to the next" },
  finished: { name: "finished", colour: "done", meaning: "done" },
  refused: { name: "refused", colour: "c4", meaning: "declined at submission" },
  failed: { name: "failed", colour: "c4", meaning: "ended with an error" },
  cancelled: { name: "cancelled", colour: "c7", meaning: "withdrawn" },
};
export const OPEN = ["pending", "admitted", "standby", "running", "resizing"];
export const CLOSED = ["finished", "refused", "failed", "cancelled"];
export const isOpen = (job) => OPEN.includes(job.state);

export function badge(state) {
  const { name, colour, meaning } = STATES[state] ?? { name: state, colour: "c7", meaning: "" };
  return element("span", { class: `badge b-${colour}`, title: meaning }, name);
}

/** Return the address of a view, by its name and arguments. */
export const to = (view, ...parts) => `#/${[view, ...parts].map((item) => encodeURIComponent(item)).join("/")}`;

/** Return a reference to a job by its id, because several jobs may have its name. */
export const reference = (name, id) => (id === null || id === undefined ? name : `id:${id}`);

export function jobLink(name, id = null) {
  if (name === null) return element("span", { class: "soft" }, "another tenant's");
  return element("a", { href: to("job", reference(name, id)), class: "jobname", title: name, "data-focus": `job ${reference(name, id)}` }, name);
}

// ---------------------------------------------------------------- time

const two = (value) => String(value).padStart(2, "0");

/** Format a moment in local time; with the day, unless that is today. */
export function clockTime(moment, seconds = false) {
  const at = new Date(moment), today = new Date();
  const time = `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ""}`;
  if (at.toDateString() === today.toDateString()) return time;
  const day = at.toLocaleDateString("en", { day: "numeric", month: "short", ...(at.getFullYear() === today.getFullYear() ? {} : { year: "numeric" }) });
  return `${day} ${time}`;
}

/** Format the time until a moment, or since it, by the service's clock. */
export function distance(moment) {
  const seconds = (new Date(moment) - now()) / 1000;
  const size = Math.abs(seconds);
  if (size < 1) return "now";
  const text = size < 60 ? `${Math.round(size)} s` : span(Math.round(size / 60) * 60, 2);
  return seconds > 0 ? `in ${text}` : `${text} ago`;
}

/** Return the first moment that isn't over, of those that repeat every `seconds` from `moment` on. */
function nextMoment(moment, seconds) {
  const passed = (now() - new Date(moment)) / 1000;
  return passed <= 0 ? moment : new Date(new Date(moment).getTime() + Math.ceil(passed / seconds) * seconds * 1000).toISOString();
}

/**
 * Return a moment and its distance from now, updated every second; a dash if there is none.
 *
 * With `every`, the moment repeats after so many seconds, as the start of a slot does, and the next one is shown.
 */
export function when(moment, { seconds = false, brief = false, every = 0 } = {}) {
  if (!moment) return element("span", { class: "soft" }, "–");
  const text = element("time", { datetime: moment, title: new Date(moment).toLocaleString("en", { timeZoneName: "short" }) }, clockTime(moment, seconds));
  if (every) Object.assign(text.dataset, { moment, every, clock: seconds ? "seconds" : "minutes" });
  if (brief) return text;
  return element("span", { class: "when" }, text, " ", element("small", { class: "soft", "data-moment": moment, ...(every ? { "data-every": String(every) } : {}) }, distance(every ? nextMoment(moment, every) : moment)));
}

/** Update the distance of every moment on the page. */
export function tickMoments(root = document) {
  for (const node of root.querySelectorAll("[data-moment]")) {
    const { every, clock } = node.dataset;
    const moment = every ? nextMoment(node.dataset.moment, Number(every)) : node.dataset.moment;
    const text = clock ? clockTime(moment, clock === "seconds") : distance(moment);
    if (node.textContent !== text) node.textContent = text;
  }
}

// ---------------------------------------------------------------- numbers in boxes

export function tile(label, value, remark = "", more = {}) {
  return element("div", { class: `tile ${more.class ?? ""}` }, element("span", {}, label), element("b", {}, ...(Array.isArray(value) ? value : [value])), element("small", {}, ...(Array.isArray(remark) ? remark : [remark])));
}

export function bar(share, label, { kind = "", wide = false } = {}) {
  const value = Math.max(0, Math.min(1, share || 0));
  const meter = element("progress", { class: `meter ${kind} ${wide ? "wide" : ""}`, max: "1", value: String(value), "aria-label": label });
  meter.value = value;
  return meter;
}

/** Format a share as a percentage, rounded down, so that 100 % means all of it. */
export function percent(share) {
  const value = Math.floor(share * 1000 + 1e-6) / 10;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.floor(value)} %`;
}

export function empty(title, ...text) {
  return element("div", { class: "empty" }, element("p", { class: "emptyhead" }, title), ...text.map((line) => element("p", {}, line)));
}

export function note(kind, ...content) {
  return element("div", { class: `note ${kind}`, role: kind === "bad" ? "alert" : "note" }, ...content);
}

/** Return a note about a problem, with all diagnostics of the request. */
export function problemNote(problem) {
  const faults = problem.errors?.length ? element("ul", {}, ...problem.errors.map((fault) => element("li", {},
    element("code", {}, fault.location ?? ""), ` ${fault.message}`, fault.hint ? element("span", { class: "soft" }, `; ${fault.hint}`) : null))) : null;
  return note("bad", faults ? element("p", {}, "The request has errors:") : element("p", {}, problem.message), faults);
}

/** A chart with its heading and caption; hidden while it has no data. */
export class Figure {
  constructor(app, heading, caption = null, above = null) {
    this.app = app;
    this.heading = element("h2", {}, heading);
    this.caption = caption === null ? null : element("figcaption", {}, caption);
    this.host = element("div", { class: "chart" });
    this.node = element("figure", { hidden: true }, this.heading, above, this.host, this.caption);
  }

  /** Draw a chart by its description; null hides it. */
  show(description) {
    this.node.hidden = !description;
    if (!description) return;
    const { charts } = this.app;
    if (this.chart && charts.charts.has(this.chart)) this.chart.update(description);
    else this.chart = new Chart(this.host, description, charts);
  }

  remove() {
    this.chart?.dispose();
    this.node.remove();
  }
}

// ---------------------------------------------------------------- tables

/**
 * Return a table. `columns` are {head, cell(row), class}; a cell is a node, a text or an array of them.
 *
 * On narrow screens, each row becomes a card, whose cells are labelled with their columns' names.
 */
export function table(caption, columns, rows, { key = null, none = "None." } = {}) {
  const made = element("table", { class: "cards" }, element("caption", { class: "sr" }, caption),
    element("thead", {}, element("tr", {}, ...columns.map((column) => element("th", { scope: "col", class: column.class ?? "" }, column.head || element("span", { class: "sr" }, "Actions"))))),
    element("tbody", {}, ...rows.map((row) => {
      const line = element("tr", {}, ...columns.map((item) => {
        const inside = item.cell(row);
        const content = element("div", {}, ...(Array.isArray(inside) ? inside : [inside ?? ""]));
        return element("td", { class: `${item.class ?? ""} ${content.textContent.trim() || content.querySelector("progress") ? "" : "void"}`, "data-head": item.head }, content);
      }));
      if (key) line.dataset.key = key(row);
      return line;
    })));
  if (!rows.length) made.tBodies[0].append(element("tr", { class: "none" }, element("td", { colspan: String(columns.length) }, none)));
  return element("div", { class: "table" }, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made));
}

/** Replace the content of a node, and keep the focus and the horizontal scroll positions. */
export function swap(host, ...content) {
  const focused = host.contains(document.activeElement) ? document.activeElement.closest("[data-focus]")?.dataset.focus : null;
  const scrolled = [...host.querySelectorAll(".scroll")].map((item) => item.scrollLeft);
  host.replaceChildren(...content.filter((item) => item !== null));
  [...host.querySelectorAll(".scroll")].forEach((node, index) => { if (scrolled[index]) node.scrollLeft = scrolled[index]; });
  if (focused !== null && focused !== undefined) {
    [...host.querySelectorAll("[data-focus]")].find((item) => item.dataset.focus === focused)?.focus({ preventScroll: true });
  }
}

export function button(label, act, { kind = "", focus = label, ...more } = {}) {
  return element("button", { type: "button", class: kind, onclick: act, "data-focus": focus, ...more }, label);
}

/** The pages of a list: the page to show, and the pages before it. */
export class Pages {
  constructor(app) {
    this.app = app;
    this.reset();
  }

  reset() {
    this.wanted = { cursor: null, number: 1, previous: null, entries: 0 }; // `entries`: number on all pages before
  }

  /** Return the buttons of the shown page, which may differ from the wanted page while that is fetched. */
  buttons(page, next, entries, counted = false) {
    if (this.shown && this.shown !== page) this.app.announce(`page ${page.number}`);
    this.shown = page;
    const { previous } = page, before = page.entries;
    let first = page;
    while (first.previous) first = first.previous;
    return element("div", { class: "pager end" },
      counted && entries ? element("span", { class: "soft" }, `${number(before + 1)} to ${number(before + entries)}, the newest first`) : null,
      previous ? button("Newest", () => this.turn(first), { focus: "newest" }) : null,
      previous ? button("Newer", () => this.turn(previous), { focus: "newer" }) : null,
      next !== null ? button("Older", () => this.turn({ cursor: next, number: page.number + 1, previous: page, entries: before + entries }), { focus: "older" }) : null);
  }

  async turn(page) {
    this.wanted = page;
    await this.app.refresh();
  }
}

export function chips(label, choices, chosen, pick) {
  return element("div", { class: "chips", role: "group", "aria-label": label }, ...choices.map(([key, name, count]) => element("button", {
    type: "button", "aria-pressed": String(key === chosen), onclick: () => pick(key), "data-focus": `chip ${key}`,
  }, name, count === undefined || count === null ? null : element("b", {}, ` ${count.toLocaleString("en")}`))));
}

/** Return why a job waits or ended: the first line of its reason. */
export function reasonOf(job) {
  const text = job.reason?.message ?? "";
  const [first] = text.split("\n");
  return localTimes(first.replace(/^waits /, ""));
}

/** Convert the times in a text of the service to local time, except in options for a terminal. */
export function localTimes(text) {
  return text.replace(/(--by )?\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g, (found, option) => option ? found : clockTime(found, true));
}

/** Return a note with a job's outlook, whose lines may begin with a label that is padded to ten characters. */
export function outlookNote(outlook) {
  const lines = outlook.lines.map((line) => line.match(/^(.{10}) {2}(\S.*)$/)?.slice(1) ?? ["", line]);
  return note("info lines", ...lines.map(([label, text]) => element("p", {}, label.trim() ? element("b", {}, `${label.trim()}: `) : null, localTimes(text))));
}

/** Return a tile with the predicted length of a job that states none. */
export function lengthTile(predicted) {
  const similar = `${number(predicted.jobs)} similar job${predicted.jobs === 1 ? "" : "s"}`;
  if (predicted.probability === 1) return tile("Length", `at most ${span(predicted.seconds, 2)}`, "its time limit");
  return tile("Length", `${predicted.probability === null ? "planned as" : "at most"} ${span(predicted.seconds, 2)}`, predicted.probability === null ? "no similar job ran as long" : `with a probability of ${percent(predicted.probability)}, by ${similar}`);
}

/** Return a job's promise and expected completion; for a finished job, whether it kept its promise. */
export function promiseCell(job) {
  if (job.state === "finished") {
    const late = job.first_promise_slot !== null && job.completion_slot !== null && job.completion_slot > job.first_promise_slot;
    const kept = job.first_promise_slot !== null && !late;
    return [when(job.completion, {}), late ? element("span", { class: "tag late" }, "late") : kept ? element("span", { class: "tag kept" }, "kept") : null].filter(Boolean);
  }
  const expected = isOpen(job) && job.completion ? element("small", { class: "soft expected" }, "expected ", when(job.completion, { brief: true })) : null;
  if (!job.promise) return [element("span", { class: "soft" }, isOpen(job) ? "no promise" : "–"), expected].filter(Boolean);
  const moved = job.first_promise_slot !== null && job.first_promise_slot !== job.promise_slot;
  return [when(job.promise), moved ? element("span", { class: "tag moved", title: `first promised for slot ${job.first_promise_slot}` }, job.promise_slot > job.first_promise_slot ? "moved later" : "moved earlier") : null, expected].filter(Boolean);
}

export function whereCell(job) {
  if (!job.servers?.length) return element("span", { class: "soft" }, "–");
  const widths = [job.workers ? `${job.workers} worker${job.workers === 1 ? "" : "s"}` : "", job.ps ? `${job.ps} ps` : ""].filter(Boolean).join(" + ");
  const names = job.servers.slice(0, 2).join(", ") + (job.servers.length > 2 ? ` and ${job.servers.length - 2} more` : "");
  return [`${widths} `, element("span", { class: "soft", title: job.servers.slice(0, 50).join(", ") }, `on ${names}`)];
}

export function progressCell(job) {
  if (!job.required) return element("span", { class: "soft" }, "–");
  const share = job.state === "finished" ? 1 : job.progress / job.required;
  return element("span", { class: "progress" }, bar(share, `${percent(share)} of the work of ${job.name} done`), element("span", { class: "num" }, percent(share)));
}
