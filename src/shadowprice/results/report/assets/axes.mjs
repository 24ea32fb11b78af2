// Axes, zoom and tooltips that the kinds of charts share.

import { roundStep, tick } from "./format.mjs";

const MAX_TICKS = 12; // of an axis that has at most 10: sums of huge numbers are inexact

export const GRID = { left: 8, right: 16, top: 10, bottom: 26, outerBoundsMode: "same", outerBoundsContain: "axisLabel" };

/** Return how a time axis zooms. */
export function zoom() {
  const mouse = matchMedia("(pointer: fine)").matches;
  // A wheel scrolls the page and a finger moves it; only with Ctrl does the wheel zoom.
  return { type: "inside", xAxisIndex: 0, filterMode: "none", zoomOnMouseWheel: mouse ? "ctrl" : false, moveOnMouseMove: mouse, moveOnMouseWheel: false };
}

/** Return what all tooltips have in common. */
export function tooltipOf(chart) {
  return {
    confine: true, className: "tip", padding: 0, borderWidth: 0, backgroundColor: "transparent", extraCssText: "box-shadow:none", transitionDuration: 0,
    axisPointer: { type: "line", lineStyle: { color: chart.page.colours.soft, type: "dashed" }, label: { show: false } },
  };
}

/** Return how wide the widest of some names is, in pixels. */
function widest(names, size, font) {
  const context = (widest.canvas ??= document.createElement("canvas")).getContext("2d");
  context.font = `${size}px ${font}`;
  return Math.ceil(names.reduce((most, name) => Math.max(most, context.measureText(name).width), 0)) + 2;
}

/** Return an axis of named rows, from the top; `also` are texts that its formatter puts beside names. */
export function nameAxis(names, chart, { most = 0.34, also = [], ...more } = {}) {
  const { colours } = chart.page;
  return {
    type: "category", data: names.map((_, at) => at), inverse: true, axisLine: { show: false }, axisTick: { show: false },
    axisLabel: {
      color: colours.text, fontSize: 12, interval: 0, overflow: "truncate",
      width: Math.min(200, chart.width * most, widest([...names, ...also], more.fontSize ?? 12, colours.font)),
      formatter: (at) => names[at], ...more,
    },
  };
}

/** Return an axis of numbers that are no slots. */
export function plainAxis(d, chart, low, high) {
  const { colours } = chart.page, top = high > low ? high : low + 1;
  // Round positions only: the ends of the axis would stand on the labels beside them.
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
