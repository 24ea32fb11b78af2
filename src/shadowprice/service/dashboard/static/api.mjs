// Asking the service: one place for addresses, the token and what goes wrong.

const KEY = "shadowprice-token";

/** What went wrong, as the service told it (RFC 9457), or that it could not be asked. */
export class Problem extends Error {
  constructor(status, record) {
    super(record.detail ?? record.title ?? "the service gave no reason");
    this.status = status;
    this.code = record.code ?? "unknown";
    this.errors = record.errors ?? [];
    this.after = record.after ?? null;
  }

  /** Whether the request is valid, so that it may be answered later. */
  get passing() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** Who is signed in. The token is kept for this tab alone, and is only ever sent as a header. */
export const session = {
  token: read(),
  onexpired: () => {},

  open(token) {
    this.token = token;
    try {
      sessionStorage.setItem(KEY, token);
    } catch {
      // Without storage it lasts until the page is left.
    }
  },

  close() {
    this.token = null;
    try {
      sessionStorage.removeItem(KEY);
    } catch {
      // There was none.
    }
  },
};

function read() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/** Return the address of a route; the service may live below a path of a proxy. */
export function address(path, query = {}) {
  const url = new URL(`v1/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

/** Return a name as a part of a path. */
export const part = (name) => encodeURIComponent(name);

export const headers = (more = {}) => ({ Authorization: `Bearer ${session.token}`, ...more });

const TOLD = 3000; // milliseconds by which clocks differ before it counts: answers tell whole seconds
let ahead = 0;

/** Return the moment by the service's clock, as its answers tell it: this machine's may be set otherwise. */
export const now = () => Date.now() + ahead;

function compareClocks(answer) {
  const by = Date.parse(answer.headers.get("Date") ?? "") + 500 - Date.now();
  ahead = Math.abs(by) > TOLD ? by : 0;
}

/** Ask the service, and return what it answers; a `Problem` where it does not. */
export async function ask(path, { method = "GET", query, body, signal, key } = {}) {
  let answer;
  const asked = session.token;
  try {
    answer = await fetch(address(path, query), {
      method, signal, cache: "no-store", credentials: "omit", redirect: "error",
      headers: headers({ ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...(key === undefined ? {} : { "Idempotency-Key": key }) }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { code: "unreachable", detail: "the service cannot be reached" });
  }
  compareClocks(answer);
  if (answer.ok) {
    try {
      return answer.status === 204 ? null : await answer.json();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, { code: "unreachable", detail: "the answer of the service broke off" });
    }
  }
  const problem = await problemOf(answer);
  if (answer.status === 401 && asked === session.token) session.onexpired(problem);
  throw problem;
}

/** Return what an answer says went wrong. */
export async function problemOf(answer) {
  let record = {};
  try {
    record = await answer.json();
  } catch {
    record = { detail: `the answer was ${answer.status}` };
  }
  return new Problem(answer.status, record);
}
