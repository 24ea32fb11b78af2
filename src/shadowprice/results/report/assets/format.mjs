// Formats numbers, durations and times; `number` equals `format_number` in number_format.py.

/** Format a number with thousands separators and about two significant decimals. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  const size = Math.abs(value);
  if (size < 1e-12) return "0";
  if (size >= 1e15 || size < 1e-3) return value.toExponential(1).replace(".0e", "e").replace(/e([+-])(\d)$/, "e$10$2");
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return size >= 1 ? value.toFixed(2) : String(Number(value.toPrecision(3)));
}

/** Format a fraction as a percentage. */
export function percent(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  return `${Number((value * 100).toFixed(1))}%`;
}

/** Format a value of a chart, which is a fraction if the chart shows percentages. */
export const written = (description, value) => (description.percent ? percent(value) : number(value));

/** Format a tick compactly, with k, M and G. */
export function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(4))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(6)));
}

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3]];

/** Format a duration in at most `units` units, rounded to the smallest of them: `1 d 6 h`. */
export function span(seconds, units = 2) {
  if (!Number.isFinite(seconds)) return "-";
  let left = Math.abs(seconds), size = Infinity;
  const parts = [];
  for (const [at, [unit, length]] of UNITS.entries()) {
    const last = parts.length === units - 1 || at === UNITS.length - 1;
    const count = last ? Math.round(left / length) : Math.floor(left / length + 1e-9);
    // If rounding gives one of the larger unit, start again: 89 d 24 h are 90 d.
    if (count * length >= size) return (seconds < 0 ? "-" : "") + span(Math.abs(seconds) - left + count * length, units);
    size = length;
    if (count > 0) {
      parts.push(`${count.toLocaleString("en")} ${unit}`);
      left -= count * length;
    }
    if (parts.length === units || left < 1e-9) break;
  }
  return (seconds < 0 ? "-" : "") + (parts.join(" ") || "0");
}

/**
 * Converts slots to times and axis positions.
 *
 * `slot` is the length of a slot in seconds. `origin` is the Unix time at which slot 0 begins, or null if it is
 * unknown. `mode` says what axes show: `time` or `slots`.
 */
export class Clock {
  constructor(slot, origin = null, mode = "time") {
    this.slot = slot;
    this.origin = origin;
    this.mode = mode;
  }

  /** Return the axis position of a slot: slots, or seconds since slot 0 or the midnight before it. */
  position(slot) {
    return this.mode === "slots" ? slot : slot * this.slot + this.offset;
  }

  /** Return the slot at an axis position. */
  slotAt(position) {
    return this.mode === "slots" ? position : (position - this.offset) / this.slot;
  }

  get offset() {
    return this.origin === null ? 0 : ((this.origin % 86400) + 86400) % 86400;
  }

  /** Format the beginning of a slot: its number and its time. */
  moment(slot) {
    const shown = Number.isInteger(slot) ? slot.toLocaleString("en") : number(slot);
    return `slot ${shown} · ${this.time(slot)}`;
  }

  /** Format the time at which a slot begins: date and time, or the time since slot 0. */
  time(slot) {
    if (this.origin === null) return slot === 0 ? "0 h" : span(slot * this.slot, 3);
    const at = new Date((this.origin + slot * this.slot) * 1000);
    return at.toISOString().slice(0, this.slot < 60 ? 19 : 16).replace("T", " ");
  }

  /** Return a round interval between ticks, for at most `count` ticks on a range of positions. */
  interval(range, count) {
    const wanted = range / Math.max(count, 1);
    if (this.mode === "slots") return Math.max(1, roundStep(wanted));
    const days = [1, 2, 5, 7, 14, 28].map((number) => number * 86400);
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, ...days];
    return steps.find((step) => step >= wanted) ?? (wanted < 1 ? roundStep(wanted) : 28 * 86400 * Math.ceil(wanted / 28 / 86400));
  }

  /** Format a tick of the axis. */
  label(position) {
    if (this.mode === "slots") return tick(position);
    if (this.origin === null) return position === 0 ? "0" : span(position, 3);
    const at = new Date((this.origin - this.offset + position) * 1000);
    const [day, time] = [at.toISOString().slice(0, 10), at.toISOString().slice(11, position % 60 ? 19 : 16)];
    if (time !== "00:00") return time;
    return at.toLocaleDateString("en", { day: "numeric", month: "short", timeZone: "UTC" }) + (day.endsWith("-01-01") ? ` ${day.slice(0, 4)}` : "");
  }

  get title() {
    if (this.mode === "slots") return `slot (of ${span(this.slot)})`;
    return this.origin === null ? "time since the first slot" : "date and time";
  }
}

/** Return the smallest number of 1, 2 or 5 times a power of ten that is at least `value`. */
export function roundStep(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
}
