// Requests to the service: addresses, the token and errors.

const KEY = "shadowprice-token";

/** A problem that the service reports (RFC 9457), or a failed connection. */
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

/** The signed-in user. The token is kept for this tab only, and only sent as a header. */
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

const MAX_CLOCK_ERROR = 3000; // milliseconds by which clocks may differ: responses have whole seconds
let ahead = 0;

/** Return the time of the service's clock, from its responses: this machine's may be wrong. */
export const now = () => Date.now() + ahead;

function compareClocks(response) {
  const by = Date.parse(response.headers.get("Date") ?? "") + 500 - Date.now();
  ahead = Math.abs(by) > MAX_CLOCK_ERROR ? by : 0;
}

/** Send a request and return the response; throw a `Problem` if it fails. */
export async function request(path, { method = "GET", query, body, signal, key } = {}) {
  let response;
  const token = session.token;
  try {
    response = await fetch(address(path, query), {
      method, signal, cache: "no-store", credentials: "omit", redirect: "error",
      headers: headers({ ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...(key === undefined ? {} : { "Idempotency-Key": key }) }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { code: "unreachable", detail: "the service cannot be reached" });
  }
  compareClocks(response);
  if (response.ok) {
    try {
      return response.status === 204 ? null : await response.json();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, { code: "unreachable", detail: "the answer of the service broke off" });
    }
  }
  const problem = await problemOf(response);
  if (response.status === 401 && token === session.token) session.onexpired(problem);
  throw problem;
}

/** Return the problem in a response. */
export async function problemOf(response) {
  let record = {};
  try {
    record = await response.json();
  } catch {
    record = { detail: `the response was ${response.status}` };
  }
  return new Problem(response.status, record);
}
