// Axes, zoom and tooltips shared by the kinds of charts.

import { roundStep, tick } from "./format.mjs";

const MAX_TICKS = 12; // an axis has at most 10 ticks, but a rounded step of huge numbers could give many more

export const GRID = { left: 8, right: 16, top: 10, bottom: 26, outerBoundsMode: "same", outerBoundsContain: "axisLabel" };

/** Return the `dataZoom` option of a time axis. */
export function zoom() {
  const mouse = matchMedia("(pointer: fine)").matches;
  // The wheel and a finger scroll the page, so zooming needs Ctrl, and panning a mouse.
  return { type: "inside", xAxisIndex: 0, filterMode: "none", zoomOnMouseWheel: mouse ? "ctrl" : false, moveOnMouseMove: mouse, moveOnMouseWheel: false };
}

/** Return the options shared by all tooltips. */
export function tooltipOf(chart) {
  return {
    confine: true, className: "tip", padding: 0, borderWidth: 0, backgroundColor: "transparent", extraCssText: "box-shadow:none", transitionDuration: 0,
    axisPointer: { type: "line", lineStyle: { color: chart.page.colours.soft, type: "dashed" }, label: { show: false } },
  };
}

/** Return the width of the widest name in pixels. */
function widest(names, size, font) {
  const context = (widest.canvas ??= document.createElement("canvas")).getContext("2d");
  context.font = `${size}px ${font}`;
  return Math.ceil(names.reduce((maximum, name) => Math.max(maximum, context.measureText(name).width), 0)) + 2;
}

/**
 * Return an axis of named rows, from the top.
 *
 * `maxShare` is the maximum share of the chart's width for names. `also` are further texts that the formatter writes.
 */
export function nameAxis(names, chart, { maxShare = 0.34, also = [], ...more } = {}) {
  const { colours } = chart.page;
  return {
    type: "category", data: names.map((_, at) => at), inverse: true, axisLine: { show: false }, axisTick: { show: false },
    axisLabel: {
      color: colours.text, fontSize: 12, interval: 0, overflow: "truncate",
      width: Math.min(200, chart.width * maxShare, widest([...names, ...also], more.fontSize ?? 12, colours.font)),
      formatter: (at) => names[at], ...more,
    },
  };
}

/** Return an axis of numbers other than slots. */
export function plainAxis(d, chart, low, high) {
  const { colours } = chart.page, top = high > low ? high : low + 1;
  // Only ticks at round numbers: labels at the ends of the axis would overlap their neighbours.
  const step = roundStep((top - low) / (chart.small ? 4 : 8));
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(top / step + 1e-9);
  const ticks = Array.from({ length: Math.min(last - first + 1, MAX_TICKS) }, (_, index) => (first + index) * step);
  return {
    type: "value", min: low, max: top, name: d.x_label, nameLocation: "end", nameGap: 0, splitLine: { show: false },
    nameTextStyle: { align: "right", verticalAlign: "top", padding: [22, 0, 0, 0], color: colours.soft, fontSize: 11 },
    axisLine: { show: true, onZero: false, lineStyle: { color: colours.line } }, axisTick: { show: false }, splitNumber: chart.small ? 4 : 8,
    axisLabel: { color: colours.soft, fontSize: 11, hideOverlap: true, customValues: ticks, formatter: tick },
  };
}
