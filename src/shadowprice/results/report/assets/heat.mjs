// Heat maps: a row per server, a column per stretch of slots, one byte per cell.

import { GRID, nameAxis, zoom } from "./axes.mjs";
import { tip } from "./dom.mjs";
import { number, percent } from "./format.mjs";

export const heat = {
  toggles: false,
  extent: (d) => [d.first, d.first + d.slots],
  height: (d, width) => Math.round(Math.min(Math.max(d.rows * 18, 54), width < 520 ? 300 : 380)) + 42,
  legend: () => [],
  ramp: (d) => ({ low: d.log ? `${number(d.low)} or less` : d.percent ? "idle" : number(d.low), high: d.percent ? "full" : number(d.high), colours: d.ramp, name: `${d.what}${d.log ? ", logarithmic" : ""}` }),
  summary: (d) => `${d.what} over ${d.rows} ${d.group > 1 ? "groups of servers" : "servers"} and ${d.slots.toLocaleString("en")} slots. Arrow keys read the cells, Enter opens the server.`,
  value(d, level) {
    if (!level) return d.log ? null : 0;
    const share = level / 255;
    return d.log ? d.low * (d.high / d.low) ** share : d.low + share * (d.high - d.low);
  },
  option(d, chart) {
    const { colours, clock } = chart.page;
    const { names } = d, every = Math.ceil(14 * d.rows / (chart.height - 42));
    return {
      grid: { ...GRID, top: 4 },
      xAxis: chart.timeAxis(d.first, d.first + d.slots),
      yAxis: nameAxis(names, chart, { interval: (at) => at % every === 0, fontSize: 11, maxShare: 0.24, color: colours.soft }),
      tooltip: { show: false },
      dataZoom: [zoom()],
      series: [{
        type: "custom", clip: true, silent: true, encode: { x: [0, 1] },
        data: [[clock.position(d.first), clock.position(d.first + d.bins * d.bin)]],
        renderItem: (params, api) => drawHeat(d, chart, params, api),
      }],
    };
  },
  cell(chart, px, py) {
    const d = chart.description, clock = chart.page.clock;
    if (!chart.area || px < chart.area.x || px >= chart.area.x + chart.area.width || py < chart.area.y || py >= chart.area.y + chart.area.height) return null;
    const slot = clock.slotAt(chart.drawing.convertFromPixel({ xAxisIndex: 0 }, px));
    const column = Math.floor((slot - d.first) / d.bin);
    const row = Math.floor((py - chart.area.y) / chart.area.height * d.rows);
    return column < 0 || column >= d.bins || row < 0 || row >= d.rows ? null : { row, column };
  },
  words(d, { row, column }, chart) {
    const { clock } = chart.page;
    const from = d.first + column * d.bin, to = Math.min(from + d.bin, d.first + d.slots) - 1;
    const level = d.levels[row * d.bins + column];
    const when = to > from ? `slots ${from.toLocaleString("en")} to ${to.toLocaleString("en")} · ${clock.time(from)}` : clock.moment(from);
    const value = heat.value(d, level);
    const where = d.group > 1 ? `${d.names[row]} and ${d.group - 1} after it` : d.names[row];
    return [where, [[null, when, ""], [null, d.what, value === null ? "none" : d.percent ? percent(value) : number(Number(value.toPrecision(3)))]]];
  },
  hover(chart, px, py) {
    const cell = heat.cell(chart, px, py);
    chart.canvas.style.cursor = cell ? "pointer" : "default";
    if (cell) float(chart, px, py, tip(...heat.words(chart.description, cell, chart)));
    else heat.leave(chart);
  },
  leave(chart) {
    chart.floating?.remove();
    chart.floating = null;
  },
  click(chart, px, py) {
    const cell = heat.cell(chart, px, py);
    if (cell) chart.page.pickServer?.(cell.row * chart.description.group);
  },
  key(chart, event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const d = chart.description;
    if (event.key === "Enter" && chart.at) {
      chart.page.pickServer?.(chart.at.row * d.group);
      return true;
    }
    if (!(event.key in moves)) return false;
    const [down, right] = moves[event.key], at = chart.at ?? { row: 0, column: -1 };
    chart.at = { row: clamp(at.row + down, d.rows), column: clamp(at.column + right, d.bins) };
    const [heading, rows] = heat.words(d, chart.at, chart);
    const x = chart.drawing.convertToPixel({ xAxisIndex: 0 }, chart.page.clock.position(d.first + (chart.at.column + 0.5) * d.bin));
    float(chart, x, chart.area.y + (chart.at.row + 0.5) / d.rows * chart.area.height, tip(heading, rows));
    chart.page.announce(`${heading}: ${rows.map(([, name, value]) => `${name} ${value}`).join(", ")}`);
    return true;
  },
  count: () => 0,
  numbers(d) {
    // Only the mean and maximum of each row, because a table can't show all cells.
    const rows = d.names.map((name, row) => {
      const cells = Array.from(d.levels.subarray(row * d.bins, (row + 1) * d.bins), (level) => heat.value(d, level)).filter((v) => v !== null);
      const scale = d.percent ? 100 : 1;
      return [name, cells.length ? scale * cells.reduce((a, b) => a + b, 0) / cells.length : null, cells.length ? scale * Math.max(...cells) : null];
    });
    const unit = d.percent ? ", %" : "";
    return { columns: [{ heading: "server" }, { heading: `mean${unit}`, numeric: true }, { heading: `maximum${unit}`, numeric: true }], rows };
  },
};

const clamp = (value, count) => Math.min(count - 1, Math.max(0, value));

function float(chart, px, py, content) {
  chart.floating ??= chart.canvas.appendChild(Object.assign(document.createElement("div"), { className: "tip floating" }));
  chart.floating.replaceChildren(content);
  const { offsetWidth: wide, offsetHeight: high } = chart.floating;
  const left = px + 14 + wide > chart.canvas.clientWidth ? Math.max(0, px - wide - 10) : px + 14;
  chart.floating.style.left = `${left}px`;
  chart.floating.style.top = `${Math.max(0, Math.min(py + 14, chart.canvas.clientHeight - high))}px`;
}

/** Draw the cells as one image in screen pixels: sharp if cells are larger than pixels, else averaged. */
function drawHeat(d, chart, params, api) {
  const area = params.coordSys, [x0] = api.coord([api.value(0), 0]), [x1] = api.coord([api.value(1), 0]);
  chart.area = area;
  const source = heatSource(d, chart.page.colours);
  const ratio = devicePixelRatio || 1;
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(area.width * ratio));
  canvas.height = Math.max(1, Math.round(area.height * ratio));
  const context = canvas.getContext("2d");
  const each = (x1 - x0) / d.bins * ratio;
  context.imageSmoothingEnabled = each < 1 || canvas.height < d.rows;
  context.drawImage(source, (x0 - area.x) * ratio, 0, (x1 - x0) * ratio, canvas.height);
  return {
    type: "group",
    children: [
      { type: "rect", shape: { x: area.x, y: area.y, width: area.width, height: area.height }, style: { fill: chart.page.colours.panel } },
      { type: "image", style: { image: canvas, x: area.x, y: area.y, width: area.width, height: area.height } },
    ],
  };
}

/** Return a canvas with one pixel per cell. */
function heatSource(d, colours) {
  const [low, high] = colours[d.ramp].map(rgb);
  const canvas = document.createElement("canvas");
  canvas.width = d.bins;
  canvas.height = d.rows;
  const context = canvas.getContext("2d"), image = context.createImageData(d.bins, d.rows);
  const ramp = Array.from({ length: 256 }, (_, level) => low.map((from, at) => Math.round(from + (high[at] - from) * level / 255)));
  d.levels.forEach((level, at) => {
    const [r, g, b] = ramp[level];
    image.data.set([r, g, b, level ? 255 : 0], 4 * at);
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

function rgb(colour) {
  const digits = colour.replace("#", "");
  return [0, 2, 4].map((at) => parseInt(digits.slice(at, at + 2), 16));
}
