// The event stream: followed with a header's token, resumed where it broke off, and never believed for too long.

import { address, headers, problemOf, session } from "./api.mjs";

const QUIET = 25_000; // the service says that it is alive every 15 seconds
const PAUSES = [500, 1000, 2000, 4000, 8000, 15_000];

/**
 * Follows the stream for as long as somebody is signed in.
 *
 * `onevents` gets what is new, several at a time; `onstate` how things are: `connecting`, `live`, or `lost` with the
 * moment of the next try.
 */
export class Live {
  constructor({ onevents, onstate }) {
    this.onevents = onevents;
    this.onstate = onstate;
    this.last = null;
    this.heard = null;
    this.tries = 0;
    this.running = null;
    addEventListener("online", () => this.again());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.state === "lost") this.again();
    });
  }

  /** Begin, after an event; what happened since is told. */
  begin(after) {
    this.end();
    this.last = after;
    this.running = new AbortController();
    this.#follow(this.running.signal);
  }

  end() {
    this.running?.abort();
    this.running = null;
  }

  /** Try at once. */
  again() {
    this.tries = 0;
    this.wake?.();
  }

  #tell(state, more = {}) {
    this.state = state;
    this.onstate({ state, heard: this.heard, ...more });
  }

  async #follow(signal) {
    while (!signal.aborted && session.token) {
      if (this.state !== "lost") this.#tell("connecting");
      let why = "the connection broke off";
      try {
        await this.#once(signal);
      } catch (error) {
        if (error.status === 401) {
          session.onexpired(error);
          return;
        }
        if (error.status) why = error.message;
      }
      if (signal.aborted) return;
      const pause = PAUSES[Math.min(this.tries, PAUSES.length - 1)] * (0.8 + 0.4 * Math.random());
      this.tries += 1;
      this.#tell("lost", { next: Date.now() + pause, why });
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, pause);
        this.wake = () => { clearTimeout(timer); resolve(); };
      });
    }
  }

  /** Follow until the stream ends, or is silent for too long. */
  async #once(signal) {
    const one = new AbortController();
    const stop = () => one.abort();
    signal.addEventListener("abort", stop);
    let watch = setTimeout(stop, QUIET);
    const hear = () => {
      this.heard = Date.now();
      clearTimeout(watch);
      watch = setTimeout(stop, QUIET);
    };
    try {
      const more = { Accept: "text/event-stream" };
      if (this.last !== null) more["Last-Event-ID"] = String(this.last);
      const answer = await fetch(address("events"), { headers: headers(more), signal: one.signal, cache: "no-store", credentials: "omit" });
      if (!answer.ok) throw await problemOf(answer);
      hear();
      this.tries = 0;
      this.#tell("live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        hear();
        text += value;
        const pieces = text.split("\n\n");
        text = pieces.pop();
        const events = pieces.map(parsed).filter(Boolean);
        for (const event of events) {
          if (event.id !== null) this.last = event.id;
        }
        if (events.length) this.onevents(events);
      }
    } finally {
      clearTimeout(watch);
      signal.removeEventListener("abort", stop);
      one.abort();
    }
  }
}

/** Return an event of the stream: its id, kind and data; null for a comment or anything that is not an event. */
function parsed(piece) {
  let id = null, kind = null, data = "";
  for (const line of piece.split("\n")) {
    const [, field, value] = line.match(/^(\w+): ?(.*)$/) ?? [];
    if (field === "id" && /^\d+$/.test(value)) id = Number(value);
    else if (field === "event") kind = value;
    else if (field === "data") data += value;
  }
  if (kind === null || !data) return null;
  try {
    return { id, kind, ...JSON.parse(data) };
  } catch {
    return null;
  }
}
