// The event stream: followed with a header's token, and never believed for too long.

import { address, headers, problemOf, session } from "./api.mjs";

const QUIET = 25_000; // the service sends a keepalive every 15 seconds
const PAUSES = [500, 1000, 2000, 4000, 8000, 15_000];
const REST = 10_000; // a page is hidden for so long before its stream ends

/**
 * Follows the stream for as long as somebody is signed in, and the page is visible.
 *
 * A browser has six connections to a service, over all its tabs: streams of hidden tabs would block the visible one.
 *
 * `onevents` gets what is new, several at a time; `onstate` how things are: `connecting`, `live`, or `lost` with the
 * moment of the next try. `missed`: events before a `live` may not have been sent.
 */
export class Live {
  constructor({ onevents, onstate }) {
    this.onevents = onevents;
    this.onstate = onstate;
    this.after = null;
    this.received = null;
    this.tries = 0;
    this.running = null;
    addEventListener("online", () => this.again());
    document.addEventListener("visibilitychange", () => {
      clearTimeout(this.rest);
      if (document.hidden) this.rest = setTimeout(() => this.stop?.(), REST);
      else this.again();
    });
  }

  /** Begin, after an event; later events are sent. */
  begin(after) {
    this.end();
    this.after = after;
    this.running = new AbortController();
    this.#follow(this.running.signal);
  }

  end() {
    this.running?.abort();
    this.wake?.();
    this.running = null;
  }

  /** Try at once. */
  again() {
    this.tries = 0;
    this.wake?.();
  }

  #notify(state, more = {}) {
    this.state = state;
    this.onstate({ state, received: this.received, ...more });
  }

  async #follow(signal) {
    while (!signal.aborted && session.token) {
      if (this.state !== "lost") this.#notify("connecting");
      if (document.hidden) {
        await new Promise((resolve) => { this.wake = resolve; });
        continue;
      }
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
      if (document.hidden) {
        this.state = "connecting";
        continue;
      }
      const pause = PAUSES[Math.min(this.tries, PAUSES.length - 1)] * (0.8 + 0.4 * Math.random());
      this.tries += 1;
      this.#notify("lost", { next: Date.now() + pause, why });
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, pause);
        this.wake = () => { clearTimeout(timer); resolve(); };
      });
    }
  }

  /** Follow until the stream ends, or is silent for too long. */
  async #once(signal) {
    const one = new AbortController();
    const stop = this.stop = () => one.abort();
    signal.addEventListener("abort", stop);
    let watch = setTimeout(stop, QUIET);
    const receive = () => {
      this.received = Date.now();
      clearTimeout(watch);
      watch = setTimeout(stop, QUIET);
    };
    try {
      const more = { Accept: "text/event-stream" };
      if (this.after !== null) more["Last-Event-ID"] = String(this.after);
      const answer = await fetch(address("events"), { headers: headers(more), signal: one.signal, cache: "no-store", credentials: "omit" });
      if (!answer.ok) throw await problemOf(answer);
      receive();
      this.tries = 0;
      this.#notify("live", { missed: this.after === null });
      this.after = null; // later, the views are fetched anew instead
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        receive();
        text += value;
        const pieces = text.split("\n\n");
        text = pieces.pop();
        const events = pieces.map(parsed).filter(Boolean);
        if (events.length) this.onevents(events);
      }
    } finally {
      clearTimeout(watch);
      signal.removeEventListener("abort", stop);
      one.abort();
    }
  }
}

/** Return an event of the stream: its kind and data; null for a comment or anything that is not an event. */
function parsed(piece) {
  let kind = null, data = "";
  for (const line of piece.split("\n")) {
    const [, field, value] = line.match(/^(\w+): ?(.*)$/) ?? [];
    if (field === "event") kind = value;
    else if (field === "data") data += value;
  }
  if (kind === null || !data) return null;
  try {
    return { kind, ...JSON.parse(data) };
  } catch {
    return null;
  }
}
