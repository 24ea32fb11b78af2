// A chart of servers (rows) over time: each placement of a job is a bar, as high as its share of the server.

import { GRID, nameAxis, tooltipOf, zoom } from "./charts/axes.mjs";
import { tip } from "./charts/dom.mjs";
import { Clock } from "./charts/format.mjs";
import { KINDS } from "./charts/kinds.mjs";
import { reference, shown } from "./parts.mjs";

export const RAN = 0, PLANNED = 1, EXPECTED = 2, PROMISED = 3; // kinds of bars: 0 to 2 as in the REST API
const MEANINGS = ["ran", "planned", "expected to stay here", "promised, not placed yet"]; // by kind of bar
const MIN_HEIGHT = 0.13; // of a bar, as a share of a server's height, so that it can be seen and clicked
const PROMISES = 8; // maximum number of rows for promised jobs without a placement

const utcOffsetAt = (moment) => new Date(moment * 1000).getTimezoneOffset() * 60; // UTC minus local time, in seconds

/** Converts slots to local time, also before and after a change to or from summer time. */
class LocalClock extends Clock {
  constructor(slot, origin, mode) {
    const utcOffset = utcOffsetAt(Date.now() / 1000);
    super(slot, origin - utcOffset, mode);
    this.utcOffset = utcOffset;
  }

  /** Return by how many seconds the offset at a slot differs from the present one. */
  #offsetChange(slot) {
    return this.utcOffset - utcOffsetAt(this.origin + this.utcOffset + slot * this.slot);
  }

  time(slot) {
    return super.time(slot + this.#offsetChange(slot) / this.slot);
  }

  label(position) {
    return super.label(position + (this.mode === "slots" ? 0 : this.#offsetChange(this.slotAt(position))));
  }

  get title() {
    return this.mode === "slots" ? "slot" : "local time";
  }
}

/** Return the clock of a timeline's slots. */
export const clockOf = (slotSeconds, origin, mode = "time") => new LocalClock(slotSeconds, new Date(origin).getTime() / 1000, mode);

/** Return the legend, and a function that gives a job's colour: by tenant if there are several, else by job. */
export function colouring(response) {
  const tenants = [...new Set(response.jobs.map((job) => job.tenant).filter((name) => name !== null))].sort();
  const hidden = response.jobs.some((job) => job.job === null);
  if (tenants.length > 1 || (tenants.length === 1 && hidden)) {
    const colourOf = new Map(tenants.map((name, at) => [name, at < 6 ? at : 6])); // six colours, and one for the rest
    const entries = tenants.slice(0, 6).map((name, at) => ({ name: shown(name), colour: at, look: "full" }));
    if (tenants.length > 6) entries.push({ name: `${tenants.length - 6} other tenants`, colour: 6, look: "full" });
    if (response.jobs.some((job) => job.tenant === null && job.job !== null)) entries.push({ name: "no tenant", colour: 7, look: "full" });
    if (hidden) entries.push({ name: "other tenants'", colour: 7, look: "full" });
    return { entries, colour: (job) => (job.tenant === null ? 7 : colourOf.get(job.tenant)) };
  }
  // Jobs of one tenant are distinguished by six colours, which repeat.
  const position = new Map(response.jobs.map((job, index) => [job, index]));
  return { entries: [], colour: (job) => (job.job === null ? 7 : [0, 1, 2, 3, 5, 6][position.get(job) % 6]) };
}

/**
 * Return the description of a chart of some servers, by default of all.
 *
 * `response` is the response of `GET /v1/timeline`. Names are shown with visible control characters (`shown`). Without
 * `lanes`, bars keep no height or position.
 */
export function describe(response, { servers = response.servers, promises = true, lanes = true } = {}) {
  const rowOf = new Map(servers.map((name, at) => [name, at]));
  const { entries, colour } = colouring(response);
  const bars = [], columns = response.bars;
  for (let at = 0; at < columns.job.length; at += 1) {
    const row = rowOf.get(columns.server[at]);
    if (row === undefined) continue;
    const job = response.jobs[columns.job[at]];
    bars.push({
      row, key: columns.job[at], job: job.job === null ? null : reference(job.job, job.job_id), name: job.job === null ? "another tenant's" : shown(job.job), tenant: job.tenant, state: job.state,
      from: columns.start[at], to: columns.end[at], workers: columns.workers[at], ps: columns.ps[at],
      what: columns.kind[at], share: columns.share[at], colour: colour(job),
    });
  }
  if (lanes) placeBars(bars);
  const rows = servers.map(shown);
  const open = promises ? response.promises.slice(0, PROMISES) : [];
  for (const [number, slot] of open) {
    const job = response.jobs[number], late = Math.max(slot + 1, response.now);
    rows.push(job.job === null ? "another tenant's" : shown(job.job));
    bars.push({ row: rows.length - 1, key: number, job: job.job === null ? null : reference(job.job, job.job_id), name: rows.at(-1), tenant: job.tenant, state: job.state, from: response.now, to: late, end: slot + 1, workers: 0, ps: 0, what: PROMISED, share: 1, colour: colour(job), y: 0.22, h: 0.56 });
  }
  label(bars);
  return { kind: "timeline", rows, servers: servers.length, bars, legend: entries, first: response.first, last: response.last, now: response.now, more: promises ? response.promises.length - open.length : 0 };
}

/** Set the height and position of each bar in its server's row: where its job was before, or else the first free position. */
function placeBars(bars) {
  const servers = new Map();
  for (const bar of bars) {
    if (!servers.has(bar.row)) servers.set(bar.row, []);
    servers.get(bar.row).push(bar);
  }
  for (const mine of servers.values()) {
    mine.sort((a, b) => a.from - b.from || a.what - b.what || b.share - a.share);
    let present = []; // bars that overlap in time
    const previous = new Map(); // position of each job's last bar
    for (const bar of mine) {
      present = present.filter((other) => other.to > bar.from + 1e-3);
      bar.h = Math.min(1, Math.max(MIN_HEIGHT, bar.share));
      const isFree = (y) => y + bar.h <= 1 + 1e-6 && present.every((other) => other.y + other.h <= y + 1e-6 || y + bar.h <= other.y + 1e-6);
      const before = previous.get(bar.key);
      const places = [0, ...present.map((other) => other.y + other.h)].sort((a, b) => a - b);
      // Bars may overlap if they don't all fit, because of the minimum height.
      bar.y = before !== undefined && isFree(before) ? before : places.find(isFree) ?? Math.max(0, 1 - bar.h);
      previous.set(bar.key, bar.y);
      present.push(bar);
    }
  }
}

/** Label the longest bar of each job in a row with its name. */
function label(bars) {
  const longest = new Map();
  for (const bar of bars) {
    const key = `${bar.row} ${bar.key}`, other = longest.get(key);
    if (!other || bar.to - bar.from > other.to - other.from) longest.set(key, bar);
  }
  for (const bar of longest.values()) bar.label = bar.name;
}

const rowHeight = (d) => (d.rows.length <= 6 ? 46 : d.rows.length <= 12 ? 36 : 28); // in pixels

/** The kind of chart, registered below; `d` is a description that `describe` returns. */
const timeline = {
  toggles: true,
  ruled: true,
  extent: (d) => [d.first, d.last],
  height: (d) => Math.max(1, d.rows.length) * rowHeight(d) + 62,
  legend: (d) => d.legend,
  summary: (d) => `${d.servers} server${d.servers === 1 ? "" : "s"} over time: ${d.bars.length.toLocaleString("en")} blocks of jobs that ran, run or are planned. Arrow keys read them, Enter opens the job.`,
  shownBars(d, chart) {
    const hidden = new Set(d.legend.filter((entry) => !chart.shown(entry)).map((entry) => entry.colour));
    return hidden.size ? d.bars.filter((bar) => !hidden.has(bar.colour)) : d.bars;
  },
  option(d, chart) {
    const { colours, clock } = chart.page;
    const bars = timeline.shownBars(d, chart), tall = rowHeight(d);
    return {
      grid: { ...GRID, top: 24 },
      xAxis: chart.timeAxis(d.first, d.last),
      yAxis: { ...nameAxis(d.rows, chart, { fontSize: 12, maxShare: 0.26 }), splitLine: { show: true, lineStyle: { color: colours.line } }, splitArea: { show: true, areaStyle: { color: [colours.panel + "80", "transparent"] } } },
      tooltip: { ...tooltipOf(chart), trigger: "item", formatter: (p) => (p.seriesIndex === 0 && bars[p.dataIndex] ? tip(...timeline.words(d, bars[p.dataIndex], chart)) : "") },
      dataZoom: [zoom()],
      series: [{
        type: "custom", clip: true, encode: { x: [1, 2], y: 0 },
        data: bars.map((bar) => ({ value: [bar.row, clock.position(bar.from), clock.position(bar.to)], pick: bar.job ?? undefined })),
        renderItem: (params, api) => draw(bars[params.dataIndex], params, api, colours, tall),
        markLine: {
          silent: true, symbol: "none", lineStyle: { color: colours.series[4], type: "solid", width: 1.4 },
          data: [{ xAxis: clock.position(d.now), label: { formatter: "now", color: colours.series[4], fontSize: 11, position: "start", distance: 4, rotate: 0 } }],
        },
      }],
    };
  },
  words(d, bar, chart) {
    const { clock } = chart.page;
    const moment = (slot) => (clock.mode === "slots" ? `slot ${Math.floor(slot * 10) / 10}` : clock.time(slot).slice(-8).replace(/^.* /, ""));
    const widths = [bar.workers ? `${bar.workers} worker${bar.workers === 1 ? "" : "s"}` : "", bar.ps ? `${bar.ps} parameter server${bar.ps === 1 ? "" : "s"}` : ""].filter(Boolean).join(", ");
    const rows = [[bar.colour, bar.tenant === null ? MEANINGS[bar.what] : `${shown(bar.tenant)}: ${MEANINGS[bar.what]}`, ""]];
    if (bar.what === PROMISED) rows.push([null, "promised by", moment(bar.end)]);
    else rows.push([null, widths, `${Math.round(bar.share * 100)} % of ${d.rows[bar.row]}`], [null, `${moment(bar.from)} to ${moment(bar.to)}`, ""]);
    return [bar.name, rows];
  },
  count: (d, chart) => timeline.shownBars(d, chart).length,
  data: (d, index, chart) => ({ pick: timeline.shownBars(d, chart)[index]?.job ?? undefined }),
  point: (chart, index) => chart.drawing.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: index }),
  read(d, index, chart) {
    const [heading, rows] = timeline.words(d, timeline.shownBars(d, chart)[index], chart);
    return `${heading}: ${rows.map(([, name, value]) => `${name} ${value}`.trim()).join(", ")}`;
  },
  numbers: (d) => ({
    columns: [{ heading: "where" }, { heading: "job" }, { heading: "" }, { heading: "workers", numeric: true }, { heading: "servers", numeric: true, minor: true }, { heading: "from slot", numeric: true }, { heading: "to slot", numeric: true }],
    rows: d.bars.map((bar) => [bar.what === PROMISED ? "not placed yet" : d.rows[bar.row], bar.name, MEANINGS[bar.what], bar.workers, bar.ps, Math.round(bar.from * 100) / 100, Math.round(bar.to * 100) / 100]),
  }),
};

function draw(bar, params, api, colours, tall) {
  const [x0, y] = api.coord([api.value(1), bar.row]);
  const [x1] = api.coord([api.value(2), bar.row]);
  const { x, width } = params.coordSys;
  const left = Math.max(x0, x - 2), right = Math.min(x1, x + width + 2);
  if (right < left) return null;
  const inner = tall - 6, top = y - tall / 2 + 3 + bar.y * inner;
  const wide = Math.max(right - left - 0.5, 1.5), deep = Math.max(bar.h * inner - 1, 2);
  const colour = colours.series[bar.colour];
  const style = [
    { fill: colour },
    { fill: colour, opacity: 0.5 },
    { fill: colour, fillOpacity: 0.14, stroke: colour, lineWidth: 1, lineDash: [4, 3], strokeOpacity: 0.8 },
    { fill: "none", stroke: colour, lineWidth: 1.2, lineDash: [2, 3] },
  ][bar.what];
  const rect = { type: "rect", shape: { x: left, y: top, width: wide, height: deep, r: Math.min(3, deep / 3, wide / 3) }, style };
  if (!bar.label || wide < 34 || deep < 11) return rect;
  return {
    type: "group",
    children: [rect, {
      type: "text", silent: true,
      style: { text: bar.label, x: left + 5, y: top + deep / 2, fill: bar.what === RAN ? colours.on : colours.text, fontSize: 11, verticalAlign: "middle", width: wide - 9, overflow: "truncate", ellipsis: "…", truncateMinChar: 2 },
    }],
  };
}

KINDS.timeline = timeline;

/** Return the description of a heat map of all servers, with at most `maximum` rows: then each row has several servers. */
export function heatOf(response, maximum = 120) {
  const bytes = Uint8Array.from(atob(response.levels), (letter) => letter.charCodeAt(0));
  const bins = response.last - response.first, count = response.servers.length;
  const group = Math.max(1, Math.ceil(count / maximum)), rows = Math.ceil(count / group);
  const levels = new Uint8Array(rows * bins);
  for (let row = 0; row < rows; row += 1) {
    const size = Math.min(group, count - row * group);
    for (let bin = 0; bin < bins; bin += 1) {
      let sum = 0;
      for (let each = 0; each < size; each += 1) sum += bytes[(row * group + each) * bins + bin];
      levels[row * bins + bin] = Math.ceil(sum / size);
    }
  }
  return {
    kind: "heat", rows, bins, bin: 1, slots: bins, first: response.first, group, levels, low: 0, high: 1, percent: true, log: false, ramp: "load",
    what: "used share of a server", names: Array.from({ length: rows }, (_, row) => shown(response.servers[row * group])),
  };
}

/** Return the used share of each server in the running slot, by name. */
export function usedNow(response) {
  const bins = response.last - response.first, current = Math.min(bins - 1, Math.floor(response.now) - response.first);
  const letters = atob(response.levels);
  return new Map(response.servers.map((name, row) => [name, letters.charCodeAt(row * bins + current) / 255]));
}
