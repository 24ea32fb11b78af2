// Requests to the service: addresses, the token and errors.

const KEY = "shadowprice-token"; // in the tab's session storage

/** A problem that the service reports (RFC 9457), or a failed connection. */
export class Problem extends Error {
  constructor(status, record) {
    super(record.detail ?? record.title ?? "the service gave no reason");
    this.status = status;
    this.code = record.code ?? "unknown";
    this.errors = record.errors ?? [];
  }

  /** Whether a retry of the same request may succeed. */
  get transient() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** The signed-in user. The token is stored for this tab only, and only sent as a header. */
export const session = {
  token: read(),
  onexpired: () => {}, // called when the service refuses the token

  open(token) {
    this.token = token;
    try {
      sessionStorage.setItem(KEY, token);
    } catch {
      // Without storage, the token lasts until the page is left.
    }
  },

  close() {
    this.token = null;
    try {
      sessionStorage.removeItem(KEY);
    } catch {
      // Without storage, nothing was stored.
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

/** Return the URL of a route, relative to the page, because a proxy may add a path prefix. */
export function address(path, query = {}) {
  const url = new URL(`v1/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

/** Encode a name for use in a path. */
export const part = (name) => encodeURIComponent(name);

export const headers = (more = {}) => ({ Authorization: `Bearer ${session.token}`, ...more });

const MAX_CLOCK_ERROR = 3000; // milliseconds; smaller differences are ignored, because Date headers have whole seconds
let clockOffset = 0; // milliseconds by which the service's clock is ahead of this machine's

/** Return the time of the service's clock, because this machine's clock may be wrong. */
export const now = () => Date.now() + clockOffset;

function compareClocks(response) {
  const offset = Date.parse(response.headers.get("Date") ?? "") + 500 - Date.now();
  clockOffset = Math.abs(offset) > MAX_CLOCK_ERROR ? offset : 0;
}

/** Send a request, and return the JSON of the response; throw a `Problem` if it fails. */
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
      throw new Problem(0, { code: "unreachable", detail: "the connection broke during the response" });
    }
  }
  const problem = await problemOf(response);
  // Another token may have been entered while the request was sent.
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
