// The kinds of charts: drawing, summary, table, and keyboard access of each.
//
// `d` is the description of a chart, `s` one of its series, and `at` an index. Every kind has the same functions:
// `option` returns ECharts's option, `summary` and `read` the texts for screen readers, `point` shows a tooltip,
// and `numbers` returns the table.

import { tip } from "./dom.mjs";
import { number, percent, tick, written } from "./format.mjs";
import { GRID, nameAxis, plainAxis, tooltipOf, zoom } from "./axes.mjs";
import { heat } from "./heat.mjs";

const FIRST_DASHES = ["solid", "solid", "solid", "solid", "dashed", "dashed", "dotted", "dotted"];

/** Return the dash pattern of a line: there are eight colours, so lines of one colour differ in it. */
function dash(line, all) {
  const first = FIRST_DASHES[line.colour];
  const further = ["solid", "dashed", "dotted", [9, 3, 2, 3]].filter((other) => other !== first);
  const before = all.slice(0, all.indexOf(line)).filter((other) => other.colour === line.colour);
  return [first, ...further][before.length % 4];
}

/** Return the positions of an axis, given as a list or as first, step and count. */
export function positions(axis) {
  if (Array.isArray(axis)) return axis;
  return Array.from({ length: axis.count }, (_, at) => axis.first + at * axis.step);
}

function endOf(description) {
  const xs = positions(description.x);
  return description.end ?? xs.at(-1) ?? 1;
}

// ---------------------------------------------------------------- lines

const lines = {
  toggles: true,
  extent: null,
  height: (d, width) => (width < 520 ? 210 : (d.height ?? 250)),
  legend: (d) => (d.series.length > 1 || d.legend ? d.series.map((s) => ({ name: s.name, colour: s.colour, look: dash(s, d.series) === "solid" ? "" : "dash" })) : []),
  summary(d) {
    const parts = d.series.map((s) => {
      const known = s.values.filter((value) => value !== null);
      if (!known.length) return `${s.name}: no values`;
      const [low, high] = known.reduce(([l, h], v) => [Math.min(l, v), Math.max(h, v)], [Infinity, -Infinity]);
      return `${s.name}: from ${written(d, low)} to ${written(d, high)}, at the end ${written(d, known.at(-1))}`;
    });
    return `${d.y_label} over ${d.x_label}. ${parts.join(". ")}. Arrow keys read the values.`;
  },
  option(d, chart) {
    const { colours, clock } = chart.page;
    const xs = positions(d.x), last = endOf(d);
    const at = d.slots ? (x) => clock.position(x) : (x) => x;
    const series = d.series.filter(chart.shown).map((s) => ({
      type: "line", name: s.name, symbol: "none", step: d.steps ? "end" : false, connectNulls: false, z: 3,
      data: [...xs.map((x, i) => [at(x), s.values[i], i]), ...(d.steps && last > xs.at(-1) ? [[at(last), s.values.at(-1), xs.length - 1]] : [])],
      lineStyle: { width: 1.8, color: colours.series[s.colour], type: d.series.length > 1 ? dash(s, d.series) : "solid" },
      itemStyle: { color: colours.series[s.colour] },
      areaStyle: d.fill ? { color: colours.series[s.colour], opacity: 0.14 } : undefined,
      emphasis: { disabled: true },
    }));
    // No mark at the left edge: its name would overlap the axis.
    const marks = (d.marks ?? []).filter((mark) => mark.x > (xs[0] ?? 0)).map((mark) => ({
      xAxis: at(mark.x), label: markName(mark, "end", xs[0], last, colours),
    }));
    if (marks.length && series.length) {
      series[0].markLine = { silent: true, symbol: "none", lineStyle: { color: colours.text, type: "dashed", opacity: 0.6 }, data: marks };
    }
    const above = marks.length && series.length && !d.percent ? 14 : 0; // pixels for the names of marks, below the name of the axis
    return {
      grid: { ...GRID, top: d.percent ? 10 : 26 + above },
      xAxis: d.slots ? chart.timeAxis(xs[0] ?? 0, last) : plainAxis(d, chart, xs[0] ?? 0, last),
      yAxis: {
        type: "value", max: d.y_high ?? null, splitNumber: chart.height < 180 ? 3 : 4, name: d.percent ? "" : d.y_label,
        nameLocation: "end", nameGap: 10 + above, nameTextStyle: { align: "left", color: colours.soft, fontSize: 11, padding: [0, 0, 0, -6] }, ...(d.y_high === 1 ? { interval: 0.25 } : {}), splitLine: { lineStyle: { color: colours.line } },
        axisLabel: { color: colours.soft, fontSize: 11, formatter: d.percent ? (v) => percent(v) : tick },
      },
      tooltip: { ...tooltipOf(chart), trigger: "axis", formatter: (params) => lines.tip(d, params, chart) },
      dataZoom: d.slots ? [zoom()] : [],
      series,
    };
  },
  tip(d, params, chart) {
    const index = params[0]?.data[2] ?? 0;
    const x = positions(d.x)[index];
    const heading = d.slots ? chart.page.clock.moment(x) : `${number(x)} ${d.x_label}`;
    return tip(heading, d.series.filter(chart.shown).map((s) => [s.colour, s.name, written(d, s.values[index])]));
  },
  count: (d) => positions(d.x).length,
  point(chart, index) {
    chart.drawing.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: index });
  },
  read(d, index, chart) {
    const x = positions(d.x)[index];
    const where = d.slots ? chart.page.clock.moment(x) : `${number(x)} ${d.x_label}`;
    return `${where}: ${d.series.filter(chart.shown).map((s) => `${s.name} ${written(d, s.values[index])}`).join(", ")}`;
  },
  numbers(d) {
    const xs = positions(d.x);
    const columns = [{ heading: d.slots ? "slot" : d.x_label, numeric: true, slot: d.slots },
      ...d.series.map((s) => ({ heading: d.percent ? `${s.name}, %` : s.name, numeric: true }))];
    const scale = d.percent ? 100 : 1;
    return {
      columns, remark: d.remark,
      rows: xs.map((x, i) => [x, ...d.series.map((s) => (s.values[i] === null || s.values[i] === undefined ? null : s.values[i] * scale))]),
    };
  },
};

/** Lines over slots; all charts of this kind share a time axis, and zoom together. */
const slotLines = { ...lines, extent: (d) => [positions(d.x)[0] ?? 0, endOf(d)] };

// ---------------------------------------------------------------- bars

const bars = {
  toggles: false,
  height: (d) => d.names.length * 30 + 12,
  legend: () => [],
  summary: (d) => `${d.label}: ${d.names.map((name, at) => `${name} ${d.texts[at]}`).join(", ")}`,
  option(d, chart) {
    const { colours } = chart.page;
    return {
      grid: { ...GRID, top: 2, bottom: 2, right: 78 },
      xAxis: { type: "value", show: false, min: 0, max: Math.max(...d.values, 0) || 1 },
      yAxis: nameAxis(d.names, chart),
      tooltip: { ...tooltipOf(chart), trigger: "item", formatter: (p) => tip(d.names[p.dataIndex], [[d.colours[p.dataIndex], d.label, d.texts[p.dataIndex]]]) },
      series: [{
        type: "bar", barWidth: 20, emphasis: { disabled: true },
        data: d.values.map((value, at) => ({ value, itemStyle: { color: colours.series[d.colours[at]], borderRadius: 3 } })),
        label: { show: true, position: "right", color: colours.soft, fontSize: 12, formatter: (p) => d.texts[p.dataIndex] },
      }],
    };
  },
  count: (d) => d.names.length,
  point: (chart, index) => chart.drawing.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: index }),
  read: (d, index) => `${d.names[index]}: ${d.texts[index]}`,
  numbers: (d) => ({
    columns: [{ heading: "" }, { heading: d.label, numeric: true }],
    rows: d.names.map((name, at) => [name, d.values[at]]),
  }),
};

// ---------------------------------------------------------------- shares of a whole

const shares = {
  toggles: false,
  height: (d) => d.rows.length * 40 + 8,
  legend: (d) => d.parts.map((part) => ({ name: part.name, colour: part.colour, text: d.rows.length === 1 ? part.texts[0] : null })),
  summary: (d) => d.rows.map((row, at) => `${row}: ${d.parts.map((part) => `${part.name} ${part.texts[at]}`).join(", ")}`).join(". "),
  option(d, chart) {
    const { colours } = chart.page;
    const totals = d.rows.map((_, at) => d.parts.reduce((sum, part) => sum + part.values[at], 0) || 1);
    return {
      grid: { ...GRID, top: 2, bottom: 2, right: 4, left: d.rows.length > 1 ? 8 : 0 },
      xAxis: { type: "value", show: false, min: 0, max: 1 },
      yAxis: d.rows.length > 1 ? nameAxis(d.rows, chart, { maxShare: 0.28 }) : { type: "category", data: [0], show: false },
      tooltip: {
        ...tooltipOf(chart), trigger: "item",
        formatter: (p) => tip(d.rows[p.dataIndex], [[d.parts[p.seriesIndex].colour, d.parts[p.seriesIndex].name, d.parts[p.seriesIndex].texts[p.dataIndex]]]),
      },
      series: d.parts.map((part) => ({
        type: "bar", stack: "all", barWidth: 26, name: part.name, emphasis: { disabled: true },
        itemStyle: { color: colours.series[part.colour], borderColor: colours.card, borderWidth: 1, borderRadius: 3 },
        data: part.values.map((value, at) => value / totals[at]),
        label: { show: true, color: colours.on, fontSize: 12, formatter: (p) => (p.value * chart.width < 90 ? "" : part.texts[p.dataIndex]) },
      })),
    };
  },
  count: (d) => d.rows.length * d.parts.length,
  point(chart, index) {
    const { parts } = chart.description;
    chart.drawing.dispatchAction({ type: "showTip", seriesIndex: index % parts.length, dataIndex: Math.floor(index / parts.length) });
  },
  read(d, index) {
    const part = d.parts[index % d.parts.length], row = Math.floor(index / d.parts.length);
    return `${d.rows[row]}: ${part.name} ${part.texts[row]}`;
  },
  numbers: (d) => ({
    columns: [{ heading: "" }, ...d.rows.map((row) => ({ heading: row, numeric: true }))],
    rows: d.parts.map((part) => [part.name, ...part.values]),
  }),
};

// ---------------------------------------------------------------- boxes

const boxes = {
  toggles: false,
  height: (d) => d.rows.length * 48 + 50,
  legend: () => [],
  summary: (d) => `${d.x_label}. ${d.rows.map((row) => boxes.words(d, row)).join(". ")}`,
  noun: (d, row) => `${row.count.toLocaleString("en")} ${d.intervals ? "seed" : "job"}${row.count === 1 ? "" : "s"}`,
  words(d, row) {
    if (!row.five) return `${row.name}: no jobs`;
    if (d.intervals) return `${row.name}, ${boxes.noun(d, row)}: mean ${number(row.five[2])}, between ${number(row.five[0])} and ${number(row.five[4])} with a confidence of 95 %`;
    const [low, first, middle, third, high] = row.five.map(number);
    return `${row.name}, ${boxes.noun(d, row)}: median ${middle}, half between ${first} and ${third}, nine in ten between ${low} and ${high}`;
  },
  option(d, chart) {
    const { colours } = chart.page;
    const pad = 0.04 * (d.high - d.low);
    return {
      grid: { ...GRID, top: 22, right: 20 },
      xAxis: { ...plainAxis(d, chart, d.low - pad, d.high + pad), splitNumber: chart.small ? 3 : 7, splitLine: { lineStyle: { color: colours.line } },
        axisLabel: { color: colours.soft, fontSize: 11, hideOverlap: true, showMinLabel: false, showMaxLabel: false, formatter: tick } },
      yAxis: nameAxis(d.rows.map((row) => row.name), chart, { also: d.rows.map((row) => boxes.noun(d, row)), lineHeight: 15, formatter: (at) => `${d.rows[at].name}\n{n|${boxes.noun(d, d.rows[at])}}`,
        rich: { n: { color: colours.soft, fontSize: 11, lineHeight: 15 } } }),
      tooltip: { ...tooltipOf(chart), trigger: "item", formatter: (p) => boxes.tip(d, d.rows[p.dataIndex]) },
      series: [{
        type: "custom", clip: true, data: d.rows.map((_, at) => [d.low, at]), encode: { x: 0, y: 1 },
        renderItem: (params, api) => drawBox(d.rows[params.dataIndex], params.dataIndex, api, colours),
        markLine: {
          silent: true, symbol: "none", data: d.zero ? [{ xAxis: 0 }] : [], lineStyle: { color: colours.text, type: "dashed", opacity: 0.6 },
          label: { formatter: d.zero, color: colours.soft, fontSize: 11, position: "start", distance: 4 },
        },
      }],
    };
  },
  tip(d, row) {
    if (!row.five) return tip(row.name, []);
    if (d.intervals) return tip(`${row.name}: ${boxes.noun(d, row)}`, [[row.colour, "mean", number(row.five[2])], [null, "95 % interval", `${number(row.five[0])} to ${number(row.five[4])}`]]);
    const [low, first, middle, third, high] = row.five.map(number);
    return tip(`${row.name}: ${boxes.noun(d, row)}`, [[row.colour, "median", middle], [null, "middle half", `${first} to ${third}`], [null, "nine in ten", `${low} to ${high}`]]);
  },
  count: (d) => d.rows.length,
  point: (chart, index) => chart.drawing.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: index }),
  read: (d, index) => boxes.words(d, d.rows[index]),
  numbers(d) {
    const heads = d.intervals ? ["", "seeds", "low", "mean", "high"] : ["", "jobs", "5 %", "25 %", "median", "75 %", "95 %"];
    const shown = (five) => (d.intervals ? [five[0], five[2], five[4]] : five);
    const rows = d.rows.map((row) => [row.name, row.count, ...shown(row.five ?? [null, null, null, null, null])]);
    return { columns: heads.map((heading, at) => ({ heading, numeric: at > 0 })), rows };
  },
};

function drawBox(row, at, api, colours) {
  if (!row.five) return null;
  const colour = colours.series[row.colour];
  const x = row.five.map((value) => api.coord([value, at])[0]);
  const y = api.coord([0, at])[1];
  const line = (x1, y1, x2, y2, width = 1.3) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: colour, lineWidth: width } });
  // Vertical positions follow the golden ratio: evenly spread, and the same in every drawing.
  const dots = row.dots.map((value, i) => ({
    type: "circle", silent: true, style: { fill: colour, opacity: 0.38 },
    shape: { cx: api.coord([value, at])[0], cy: y + ((i * 0.6180339887) % 1 - 0.5) * 26, r: 2 },
  }));
  return {
    type: "group",
    children: [...dots, line(x[0], y, x[1], y), line(x[3], y, x[4], y), line(x[0], y - 5, x[0], y + 5), line(x[4], y - 5, x[4], y + 5),
      { type: "rect", shape: { x: x[1], y: y - 10, width: Math.max(x[3] - x[1], 1.5), height: 20, r: 3 }, style: { fill: colour, fillOpacity: 0.22, stroke: colour, lineWidth: 1.3 } },
      line(x[2], y - 10, x[2], y + 10, 2.6)],
  };
}

/** Return the marks as text, by position. */
function marksText(marks) {
  const text = [...(marks ?? [])].sort((one, other) => one.x - other.x).map(({ name, x }) => `${name} at slot ${x}`);
  return text.length ? ` Marked: ${text.join("; ")}.` : "";
}

/** Return the label of a mark's line, aligned to the right near the right edge, where it would be cut off. */
function markName({ name, x }, position, first, last, colours) {
  const near = x > first + 0.85 * (last - first);
  return { formatter: name, color: colours.text, fontSize: 11, position, distance: 4, rotate: 0, ...(near ? { align: "right" } : {}) };
}

// ---------------------------------------------------------------- Gantt

const gantt = {
  toggles: true,
  ruled: true,
  extent: (d) => [d.first, d.last],
  height: (d) => Math.max(d.rows.length, 1) * gantt.row(d) + (d.marks ? 60 : 44),
  row: (d) => (d.rows.length > 60 ? 12 : d.rows.length > 24 ? 18 : 24),
  legend: (d) => d.legend,
  summary: (d) => `${d.label}: ${d.bars.length.toLocaleString("en")} bars in ${d.rows.length} rows.${marksText(d.marks)} Arrow keys read them, Enter opens.`,
  shownBars(d, chart) {
    const hidden = new Set(d.legend.filter((entry) => !chart.shown(entry)).map((entry) => entry.style));
    return d.bars.filter((bar) => !hidden.has(bar.style));
  },
  option(d, chart) {
    const { colours, clock } = chart.page;
    const shown = gantt.shownBars(d, chart), thick = gantt.row(d);
    const styles = new Map((d.styles ?? d.legend).map((entry) => [entry.style, entry]));
    return {
      grid: { ...GRID, top: d.marks ? 22 : 6 },
      xAxis: chart.timeAxis(d.first, d.last),
      yAxis: d.rows.length && !d.nameless ? nameAxis(d.rows, chart, { fontSize: thick < 16 ? 10 : 12, lineHeight: thick }) : { type: "category", data: d.rows.map((_, at) => at), inverse: true, show: false },
      tooltip: { ...tooltipOf(chart), trigger: "item", formatter: (p) => gantt.tip(d, shown[p.dataIndex], chart) },
      dataZoom: [zoom()],
      series: [{
        type: "custom", clip: true, encode: { x: [1, 2], y: 0 }, cursor: d.bars.some((bar) => bar.pick !== undefined) ? "pointer" : "default",
        data: shown.map((bar) => ({ value: [bar.row, clock.position(bar.from), clock.position(bar.to)], pick: bar.pick })),
        renderItem: (params, api) => drawBar(shown[params.dataIndex], styles.get(shown[params.dataIndex].style), params, api, colours, thick),
        markLine: {
          silent: true, symbol: "none", lineStyle: { color: colours.text, type: "dashed", opacity: 0.55 },
          data: (d.marks ?? []).map((mark) => ({ xAxis: clock.position(mark.x), label: markName(mark, "start", d.first, d.last, colours) })),
        },
      }],
    };
  },
  words(d, bar, chart) {
    const { clock } = chart.page;
    const slots = bar.to - bar.from === 1 ? clock.moment(bar.from) : `${clock.moment(bar.from)} to ${clock.moment(bar.to)}`;
    return [`${bar.name ?? d.rows[bar.row]}`, [[d.legend.find((entry) => entry.style === bar.style)?.colour ?? 7, d.legend.find((entry) => entry.style === bar.style)?.name ?? "", bar.text ?? ""], [null, slots, ""]]];
  },
  tip: (d, bar, chart) => tip(...gantt.words(d, bar, chart)),
  count: (d, chart) => gantt.shownBars(d, chart).length,
  data: (d, index, chart) => ({ pick: gantt.shownBars(d, chart)[index].pick }),
  point: (chart, index) => chart.drawing.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: index }),
  read(d, index, chart) {
    const [heading, rows] = gantt.words(d, gantt.shownBars(d, chart)[index], chart);
    return `${heading}: ${rows.map(([, name, value]) => `${name} ${value}`).join(", ")}`;
  },
  numbers: (d) => ({
    columns: [{ heading: "row" }, { heading: "what" }, { heading: "from slot", numeric: true, slot: true }, { heading: "up to slot", numeric: true, slot: true }, { heading: "" }],
    rows: d.bars.map((bar) => [bar.name ?? d.rows[bar.row], d.legend.find((entry) => entry.style === bar.style)?.name ?? "", bar.from, bar.to - 1, bar.text ?? ""]),
  }),
};

/** Draw a bar: filled, outlined (a plan) or thin (waiting), with its label if it fits. */
function drawBar(bar, style, params, api, colours, thick) {
  const [x0, y] = api.coord([api.value(1), bar.row]);
  const [x1] = api.coord([api.value(2), bar.row]);
  const { x, width } = params.coordSys;
  const left = Math.max(x0, x - 1), right = Math.min(x1, x + width + 1);
  if (right <= left && x1 - x0 > 0.5) return null;
  const colour = colours.series[style?.colour ?? 7];
  const look = style?.look ?? "full";
  const high = look === "thin" ? Math.max(2, thick * 0.16) : thick * (look === "outline" ? 0.8 : 0.62);
  const wide = Math.max(right - left, 1.5);
  const rect = {
    type: "rect", shape: { x: left, y: y - high / 2, width: wide, height: high, r: Math.min(2.5, high / 3) },
    style: look === "outline" ? { fill: "none", stroke: colour, lineWidth: 1.2, lineDash: [3, 2] } : { fill: colour, opacity: look === "thin" ? 0.75 : 1 },
  };
  if (!bar.label || look !== "full" || wide < (bar.label.length > 3 ? 40 : 16) || thick < 16) return rect;
  return {
    type: "group",
    children: [rect, {
      type: "text", silent: true,
      style: { text: bar.label, x: left + 5, y, fill: colours.on, fontSize: 11, verticalAlign: "middle", width: wide - 8, overflow: "truncate", ellipsis: "…", truncateMinChar: 2 },
    }],
  };
}

export const KINDS = { lines, slotLines, bars, boxes, shares, gantt, heat };
