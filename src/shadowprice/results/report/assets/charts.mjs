// Charts from plain descriptions, drawn by ECharts (the global `echarts`), for pointer, keyboard and screen reader.
//
// A description is an object with `kind` (lines, bars, boxes, shares, heat or gantt) and the data of that kind.
// charts.py writes descriptions into a page, and a service sends them. `new Chart(host, description, page)` draws
// a chart, and `chart.update(description)` redraws it. Texts of a description are never parsed as HTML.

import { element } from "./dom.mjs";
import { KINDS } from "./kinds.mjs";
import { liveTable } from "./tables.mjs";

/** Return the colours of the style sheet for the current theme. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    series: [0, 1, 2, 3, 4, 5, 6, 7].map((at) => read(`--c${at}`)),
    text: read("--text"), on: read("--on"), soft: read("--soft"), line: read("--line"), card: read("--card"), panel: read("--panel"),
    load: [read("--load-low"), read("--load-high")], price: [read("--price-low"), read("--price-high")],
    font: getComputedStyle(document.body).fontFamily,
  };
}

/**
 * Shared state of a page's charts: the clock, the colours and the zoom.
 *
 * `pick` opens the job of a clicked bar, and `announce` passes a text to screen readers.
 */
export class Page {
  constructor(clock, { pick = () => {}, announce = () => {} } = {}) {
    this.clock = clock;
    this.pick = pick;
    this.announce = announce;
    this.charts = new Set();
    this.colours = palette();
    const redraw = () => this.redraw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    // For print, the style sheet has light colours in every theme, so draw all charts again.
    const paper = matchMedia("print");
    paper.addEventListener("change", () => this.redraw(paper.matches));
    addEventListener("beforeprint", () => this.redraw(true));
    addEventListener("afterprint", redraw);
    // A chart far below the window is drawn when it comes near. When the browser is idle, the others are drawn too,
    // so that a screenshot of the whole page, or fast scrolling, shows every chart.
    this.seen = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) [...this.charts].find((chart) => chart.canvas === target)?.draw();
      }
    }, { rootMargin: "600px 0px" });
  }

  /** Redraw the charts that were drawn; with `all`, draw the others too. */
  redraw(all = false) {
    this.colours = palette();
    for (const chart of this.charts) {
      if (all || chart.drawing) chart.draw();
    }
  }

  /** Draw the remaining charts one by one, whenever the browser is idle. */
  drawLater() {
    if (this.waiting) return;
    this.waiting = true;
    const wait = globalThis.requestIdleCallback ?? ((act) => setTimeout(act, 50)); // Safari has none
    wait(() => {
      this.waiting = false;
      // A hidden chart has no size, so it can't be drawn yet.
      const [next, more] = [...this.charts].filter((chart) => !chart.drawing && chart.canvas.clientWidth);
      next?.draw();
      if (more) this.drawLater();
    });
  }

  setMode(mode) {
    this.clock.mode = mode;
    this.redraw();
  }

  /** Zoom a chart, and all charts over the same slots. */
  zoom(from, start, end) {
    for (const chart of this.charts) {
      if (chart === from || (chart.kind.extent && chart.sameExtent(from))) chart.zoomTo(start, end);
    }
  }
}

/** A chart in a host element, with its legend, zoom buttons and a table of its numbers. */
export class Chart {
  constructor(host, description, page, { eager = true } = {}) {
    this.host = host;
    this.page = page;
    this.hidden = new Set();
    this.cursor = -1;
    this.window = [0, 100];
    this.legend = element("div", { class: "legend" });
    this.canvas = element("div", { class: "canvas", tabindex: "0", role: "img", "aria-roledescription": "chart" });
    this.behind = element("div");
    this.numbers = element("details", { class: "numbers", ontoggle: () => this.#fillNumbers() },
      element("summary", {}, "Numbers"), this.behind);
    host.replaceChildren(this.legend, this.canvas, this.numbers);
    this.#describe(description);
    this.canvas.style.height = `${this.height}px`;
    this.width = 0;
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.canvas.addEventListener("blur", () => this.#unpoint());
    page.charts.add(this);
    this.#fillLegend();
    if (eager) this.draw();
    else {
      page.seen.observe(this.canvas);
      page.drawLater();
    }
  }

  /** Create the ECharts instance and its handlers, when the chart is first drawn. */
  #begin() {
    this.page.seen.unobserve(this.canvas);
    this.drawing = echarts.init(this.canvas, null, { renderer: "canvas" });
    this.drawing.on("click", (event) => this.#pick(event.data ?? {}));
    this.drawing.getZr().on("mousemove", (event) => this.kind.hover?.(this, event.offsetX, event.offsetY));
    this.drawing.getZr().on("globalout", () => this.kind.leave?.(this));
    this.drawing.getZr().on("click", (event) => this.kind.click?.(this, event.offsetX, event.offsetY));
    this.drawing.on("datazoom", () => this.#zoomed());
    this.resized = new ResizeObserver(() => this.#resize());
    this.resized.observe(this.canvas);
  }

  get height() {
    return this.kind.height(this.description, this.host.clientWidth || 600);
  }

  /** Show new data; keep the hidden series, the zoom and the opened table. */
  update(description) {
    this.#describe(description);
    if (this.drawing) this.draw();
    else this.#fillLegend();
    if (this.numbers.open) this.#fillNumbers(true);
  }

  draw() {
    if (!this.drawing) this.#begin();
    this.canvas.style.height = `${this.height}px`;
    this.width = this.canvas.clientWidth;
    this.drawing.resize();
    this.#fillLegend();
    this.drawing.setOption(this.option(), { notMerge: true });
    this.#zoomed(true);
    this.#keepShortSegments();
  }

  /** Draw short segments of lines: ECharts omits those below two pixels, which turns steps into slopes. */
  #keepShortSegments() {
    const painter = this.drawing.getZr();
    for (const shape of painter.storage.getDisplayList(true)) {
      if (!(shape.segmentIgnoreThreshold > 0.01)) continue;
      shape.segmentIgnoreThreshold = 0.01; // not 0, for which ECharts keeps its former threshold
      shape.dirtyShape();
    }
    painter.refresh();
  }

  dispose() {
    this.page.seen.unobserve(this.canvas);
    this.page.charts.delete(this);
    this.resized?.disconnect();
    this.drawing?.dispose();
    this.host.replaceChildren();
  }

  /** Return the ECharts option of the description in its current state. */
  option() {
    const { colours } = this.page;
    return {
      animation: false,
      textStyle: { fontFamily: colours.font, color: colours.soft, fontSize: 12 },
      ...this.kind.option(this.description, this),
    };
  }

  get shown() {
    return (entry) => !this.hidden.has(entry.name);
  }

  get small() {
    return this.width < 520;
  }

  sameExtent(other) {
    const own = this.kind.extent(this.description), others = other.kind.extent?.(other.description);
    return Boolean(others) && own[0] === others[0] && own[1] === others[1];
  }

  zoomTo(start, end) {
    this.window = [start, end];
    if (this.kind.extent && this.drawing) this.drawing.dispatchAction({ type: "dataZoom", start, end });
  }

  #describe(description) {
    this.description = description;
    this.kind = KINDS[description.kind];
    if (!this.kind) throw new Error(`no such kind of chart: ${description.kind}`);
    this.canvas.setAttribute("aria-label", this.kind.summary(description));
  }

  #resize() {
    if (this.canvas.clientWidth && this.canvas.clientWidth !== this.width) this.draw();
  }

  #fillLegend() {
    const entries = this.kind.legend(this.description);
    const buttons = entries.map((entry) => {
      const swatch = element("i", { class: `${entry.look ?? ""} c${entry.colour}`, "aria-hidden": "true" });
      const label = element("span", { class: "name" }, entry.name);
      const text = entry.text ? element("b", {}, entry.text) : null;
      if (!this.kind.toggles || entries.length < 2) return element("span", { class: "entry" }, swatch, label, text);
      return element("button", {
        type: "button", class: "entry", title: entry.name, "aria-pressed": String(this.shown(entry)),
        onclick: () => this.#toggle(entry, entries),
      }, swatch, label, text);
    });
    const zooms = !this.kind.extent ? [] : [
      ["−", "Zoom out", () => this.zoomBy(2)], ["+", "Zoom in", () => this.zoomBy(0.5)],
      ["All", "Show all", () => this.page.zoom(this, 0, 100)],
    ].map(([text, label, act]) => element("button", { type: "button", class: "zoom", "aria-label": label, title: label, onclick: act }, text));
    const ramp = this.kind.ramp?.(this.description);
    if (ramp) {
      const bar = element("em", { class: `ramp ${ramp.colours}`, "aria-hidden": "true" });
      buttons.push(element("span", { class: "entry" }, element("span", {}, ramp.low), bar, element("span", {}, ramp.high), element("span", { class: "name" }, ramp.name)));
    }
    const focused = [...this.legend.querySelectorAll("button")].indexOf(document.activeElement);
    this.legend.replaceChildren(...buttons, ...(zooms.length ? [element("span", { class: "zooms" }, ...zooms)] : []));
    if (focused >= 0) this.legend.querySelectorAll("button")[focused]?.focus();
    this.legend.hidden = !buttons.length && !zooms.length;
  }

  #toggle(entry, entries) {
    if (this.hidden.has(entry.name)) this.hidden.delete(entry.name);
    else if (this.hidden.size < entries.length - 1) this.hidden.add(entry.name);
    this.page.announce(`${entry.name} ${this.hidden.has(entry.name) ? "hidden" : "shown"}`);
    this.draw();
  }

  zoomBy(factor) {
    const [start, end] = this.window, middle = (start + end) / 2;
    const half = Math.min(50, Math.max(0.5, (end - start) / 2 * factor));
    const first = Math.max(0, Math.min(100 - 2 * half, middle - half));
    this.page.zoom(this, first, first + 2 * half);
  }

  #zoomed(quiet = false) {
    if (!this.kind.extent) return;
    const zoom = this.drawing.getOption().dataZoom?.[0];
    if (!zoom) return;
    const changed = zoom.start !== this.window[0] || zoom.end !== this.window[1];
    if (quiet && changed) {
      this.drawing.dispatchAction({ type: "dataZoom", start: this.window[0], end: this.window[1] });
      return;
    }
    this.window = [zoom.start, zoom.end];
    this.drawing.setOption({ xAxis: this.timeAxis(...this.kind.extent(this.description)) });
    if (changed && !quiet) this.page.zoom(this, zoom.start, zoom.end);
  }

  /** Return the option of a time axis over slots, with ticks for the range currently shown. */
  timeAxis(first, last) {
    const { clock, colours } = this.page;
    const [low, high] = [clock.position(first), clock.position(Math.max(last, first + 1))];
    const range = (high - low) * (this.window[1] - this.window[0]) / 100;
    const each = this.small ? 76 : 104;
    const interval = clock.interval(range, Math.max(2, Math.floor((this.width - 70) / each)));
    const from = low + (high - low) * this.window[0] / 100;
    const ticks = [];
    for (let at = Math.ceil(from / interval - 1e-9); at * interval <= from + range * (1 + 1e-9); at += 1) ticks.push(at * interval);
    return {
      type: "value", min: low, max: high, name: clock.title, nameLocation: "end", nameGap: 0,
      nameTextStyle: { align: "right", verticalAlign: "top", padding: [22, 0, 0, 0], color: colours.soft, fontSize: 11 },
      axisLine: { show: true, onZero: false, lineStyle: { color: colours.line } },
      axisTick: { show: true, customValues: ticks, lineStyle: { color: colours.line } },
      splitLine: { show: Boolean(this.kind.ruled), customValues: ticks, lineStyle: { color: colours.line } },
      axisLabel: { color: colours.soft, fontSize: 11, hideOverlap: true, customValues: ticks, formatter: (value) => clock.label(value) },
    };
  }

  #pick(data) {
    if (data.pick !== undefined) this.page.pick(data.pick);
  }

  // ---------------------------------------------------------------- keyboard

  #key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10 };
    if (event.key === "Escape") return this.#unpoint();
    if (!this.drawing) this.draw();
    if (this.kind.extent && ["+", "=", "-"].includes(event.key)) {
      this.zoomBy(event.key === "-" ? 2 : 0.5);
    } else if (this.kind.key?.(this, event)) {
      // A kind with rows and columns moves its own cursor.
    } else if (event.key in moves || event.key === "Home" || event.key === "End") {
      const count = this.kind.count(this.description, this);
      if (!count) return;
      const wanted = event.key === "Home" ? 0 : event.key === "End" ? count - 1 : this.cursor + moves[event.key];
      this.cursor = Math.min(count - 1, Math.max(0, wanted));
      this.kind.point(this, this.cursor);
      this.page.announce(this.kind.read(this.description, this.cursor, this));
    } else if (event.key === "Enter" && this.cursor >= 0) {
      this.#pick(this.kind.data?.(this.description, this.cursor, this) ?? {});
    } else {
      return;
    }
    event.preventDefault();
  }

  #unpoint() {
    this.cursor = -1;
    this.drawing?.dispatchAction({ type: "hideTip" });
    this.kind.leave?.(this);
  }

  // ---------------------------------------------------------------- table of numbers

  #fillNumbers(again = false) {
    if (!this.numbers.open || (this.filled && !again)) return;
    this.filled = true;
    const { columns, rows, remark } = this.kind.numbers(this.description, this);
    const box = element("div", { class: "table" });
    this.behind.replaceChildren(box, ...(remark ? [element("p", { class: "remark" }, remark)] : []));
    liveTable(box, columns, rows, { size: 10, page: this.page });
  }
}
