// Numbers, spans of time and moments as a reader wants them; the twin of scales.py.

/** Write a number: thousands apart, three digits where they tell something. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  const size = Math.abs(value);
  if (size < 1e-12) return "0";
  if (size >= 1e15 || size < 1e-3) return value.toExponential(1).replace(".0e", "e").replace(/e([+-])(\d)$/, "e$10$2");
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return size >= 1 ? value.toFixed(2) : String(Number(value.toPrecision(3)));
}

/** Write a share of 1. */
export function percent(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  return `${Number((value * 100).toFixed(1))}%`;
}

/** Write a value of a chart that counts, or that shows shares. */
export const written = (description, value) => (description.percent ? percent(value) : number(value));

/** Write a tick: short, with k, M and G. */
export function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(4))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(6)));
}

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1], ["ms", 1e-3]];

/** Write a span of time exactly, in at most so many units: `1 d 6 h`. */
export function span(seconds, most = 2) {
  if (!Number.isFinite(seconds)) return "-";
  let left = Math.abs(seconds), size = Infinity;
  const parts = [];
  for (const [at, [unit, length]] of UNITS.entries()) {
    const last = parts.length === most - 1 || at === UNITS.length - 1;
    const count = last ? Math.round(left / length) : Math.floor(left / length + 1e-9);
    // Rounded up to a whole of the larger unit: 89 d 24 h are 90 d.
    if (count * length >= size) return (seconds < 0 ? "-" : "") + span(Math.abs(seconds) - left + count * length, most);
    size = length;
    if (count > 0) {
      parts.push(`${count.toLocaleString("en")} ${unit}`);
      left -= count * length;
    }
    if (parts.length === most || left < 1e-9) break;
  }
  return (seconds < 0 ? "-" : "") + (parts.join(" ") || "0");
}

/**
 * What slots are on the clock.
 *
 * `slot` is the length of a slot in seconds, `origin` the Unix time at which slot 0 begins (null where
 * only the time since then is known) and `mode` what axes show: `time` or `slots`.
 */
export class Clock {
  constructor(slot, origin = null, mode = "time") {
    this.slot = slot;
    this.origin = origin;
    this.mode = mode;
  }

  /** Return the axis position of a slot: seconds (from a midnight, where the day is known) or slots. */
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

  /** Write the beginning of a slot: its number, and when that is. */
  moment(slot) {
    const shown = Number.isInteger(slot) ? slot.toLocaleString("en") : number(slot);
    return `slot ${shown} · ${this.time(slot)}`;
  }

  /** Write when a slot begins: the date and time, or the time since slot 0. */
  time(slot) {
    if (this.origin === null) return slot === 0 ? "0 h" : span(slot * this.slot, 3);
    const at = new Date((this.origin + slot * this.slot) * 1000);
    return at.toISOString().slice(0, this.slot < 60 ? 19 : 16).replace("T", " ");
  }

  /** Return the distance of round ticks that puts at most so many on a range of positions. */
  interval(range, most) {
    const wanted = range / Math.max(most, 1);
    if (this.mode === "slots") return Math.max(1, roundStep(wanted));
    const days = [1, 2, 5, 7, 14, 28].map((count) => count * 86400);
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, ...days];
    return steps.find((step) => step >= wanted) ?? (wanted < 1 ? roundStep(wanted) : 28 * 86400 * Math.ceil(wanted / 28 / 86400));
  }

  /** Write a tick of the axis. */
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

/** Return the round number, 1, 2 or 5 times a power of ten, that is at least as large. */
export function roundStep(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
}
