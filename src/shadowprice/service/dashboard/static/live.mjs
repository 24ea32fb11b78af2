// The event stream, read with `fetch`, because EventSource can't send the token in a header.

import { address, headers, problemOf, session } from "./api.mjs";

// All in milliseconds:
const QUIET = 25_000; // a stream that is silent for longer is broken: the service sends a keep-alive every 15 seconds
const PAUSES = [500, 1000, 2000, 4000, 8000, 15_000]; // backoff of reconnections
const REST = 10_000; // from hiding a page to the end of its stream

/**
 * Follows the stream while a user is signed in and the page is visible.
 *
 * A browser has six connections to a service for all its tabs, so streams of hidden tabs would block the visible tab.
 *
 * `onevents` gets new events, several at a time. `onstate` gets {state, received, next, why, missed}: the state is
 * `connecting`, `live`, or `lost` with the time of the next attempt. `missed` says that events before `live` may be
 * missing.
 */
export class Live {
  constructor({ onevents, onstate }) {
    this.onevents = onevents;
    this.onstate = onstate;
    this.after = null; // number of the event to start after; null: with the next event
    this.received = null; // when data came last
    this.tries = 0; // failed attempts since the last connection
    this.running = null; // ends the stream
    addEventListener("online", () => this.again());
    document.addEventListener("visibilitychange", () => {
      clearTimeout(this.rest);
      if (document.hidden) this.rest = setTimeout(() => this.stop?.(), REST);
      else this.again();
    });
  }

  /** Start to follow the stream after an event. */
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

  /** Reconnect at once. */
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

  /** Follow one connection until it ends or is silent for too long. */
  async #once(signal) {
    const connection = new AbortController();
    const stop = this.stop = () => connection.abort();
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
      const response = await fetch(address("events"), { headers: headers(more), signal: connection.signal, cache: "no-store", credentials: "omit" });
      if (!response.ok) throw await problemOf(response);
      receive();
      this.tries = 0;
      this.#notify("live", { missed: this.after === null });
      this.after = null; // after a reconnection, the view is refreshed instead
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
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
      connection.abort();
    }
  }
}

/** Parse an event of the stream: its kind and data; return null for anything else, such as a comment. */
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
