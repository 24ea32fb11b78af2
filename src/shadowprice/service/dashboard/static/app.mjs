// The page: session, navigation, refreshes after events, and the state of the connection.

import { Page } from "./charts/charts.mjs";
import { request, now, session } from "./api.mjs";
import { form } from "./dialogs.mjs";
import { Live } from "./live.mjs";
import { button, element, note, swap, tickMoments, to, problemNote, when } from "./parts.mjs";
import { clockOf } from "./timeline.mjs";
import { ActivityView } from "./view_activity.mjs";
import { ClusterView } from "./view_cluster.mjs";
import { CompareView } from "./view_compare.mjs";
import { JobView } from "./view_job.mjs";
import { ObservedView } from "./view_observed.mjs";
import { PricesView } from "./view_prices.mjs";
import { QueueView } from "./view_queue.mjs";
import { QuoteView } from "./view_quote.mjs";
import { StatementView } from "./view_statement.mjs";
import { SubmitView } from "./view_submit.mjs";
import { TenantsView } from "./view_tenants.mjs";
import { WhatifView } from "./view_whatif.mjs";

const VIEWS = { "": ClusterView, server: ClusterView, queue: QueueView, job: JobView, prices: PricesView, tenants: TenantsView, statement: StatementView, quote: QuoteView, submit: SubmitView, compare: CompareView, whatif: WhatifView, observed: ObservedView, activity: ActivityView };
const LINKS = [["", "Cluster"], ["queue", "Jobs"], ["prices", "Prices"], ["tenants", "Tenants"], ["quote", "Quote"], ["whatif", "What if"], ["observed", "Observed"], ["activity", "Activity"]];
const THEMES = ["auto", "light", "dark"];

const SOON = 350; // milliseconds from an event to the refresh of the view, in which further events are merged
const LATER = 1500; // milliseconds to a second refresh, because the first response may be older than the event
const RETRY = 3000; // milliseconds until a retry of a failed refresh

class App {
  constructor() {
    this.root = document.getElementById("app");
    this.announcer = document.getElementById("live");
    this.charts = null;
    this.service = null;
    this.view = null;
    this.live = new Live({ onevents: (events) => this.receive(events), onstate: (state) => this.state(state) });
    session.onexpired = (problem) => this.signedOut(problem.message);
    addEventListener("hashchange", () => this.route());
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // following the link would change the fragment, which selects the view
      document.getElementById("main")?.focus();
    });
    for (const kind of ["click", "auxclick"]) addEventListener(kind, openBeside);
    setInterval(() => this.tick(), 1000);
  }

  announce(text) {
    this.announcer.textContent = text;
  }

  /** Whether the signed-in user has a view. */
  offers(view) {
    if (view === "submit") return !this.service.observes;
    if (view === "whatif") return this.operates;
    return view !== "observed" || this.service.observes;
  }

  get operates() {
    return this.service?.caller.role === "operator";
  }

  async start() {
    if (!session.token) return this.signIn();
    this.root.replaceChildren(element("p", { class: "loading", role: "status" }, "Loading…"));
    try {
      this.service = await request("service");
    } catch (problem) {
      if (problem.status === 401) return undefined; // signed out already
      return this.unreachable(problem);
    }
    this.frame();
    this.live.begin(this.service.last_event);
    return this.route();
  }

  /** Show that the service can't be reached, and retry. */
  unreachable(problem) {
    this.root.replaceChildren(element("main", { id: "main", class: "alone" }, element("h1", {}, "The service does not respond"),
      note("bad", element("p", {}, problem.message)), button("Try again", () => this.start(), { kind: "primary" }), button("Sign out", () => this.signOut())));
    clearTimeout(this.retry);
    if (problem.transient) this.retry = setTimeout(() => { if (!this.service && session.token) this.start(); }, RETRY);
    this.ready();
  }

  // ---------------------------------------------------------------- signing in

  /** Show the form to sign in; `reason` is why the user was signed out, if that happened. */
  signIn(reason = "") {
    this.leave();
    this.live.end();
    this.service = null;
    const token = element("input", { id: "token", type: "password", name: "token", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "token-hint" });
    const faults = element("div", {});
    const go = element("button", { type: "submit", class: "primary" }, "Sign in");
    const sheet = element("form", { class: "signin" }, element("div", { class: "field" }, element("label", { for: "token" }, "Token"), token,
      element("small", { id: "token-hint" }, "An operator's token is in the file operator.token of the service's data directory. A tenant gets its token from the operator. The token is stored in this tab, and in tabs that are opened from its links.")), faults, go);
    sheet.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      const typed = token.value.trim();
      const previousHandler = session.onexpired;
      session.token = typed;
      session.onexpired = () => {}; // the form itself shows an invalid token
      try {
        if (!/^[\x21-\x7e]+$/.test(typed)) throw new Error("a token has only letters, digits, _ and -");
        await request("service");
        session.open(typed);
        session.onexpired = previousHandler;
        this.entered = true;
        await this.start();
        this.announce("Signed in");
      } catch (problem) {
        session.close();
        faults.replaceChildren(problemNote(problem));
        token.select();
      } finally {
        session.onexpired = previousHandler;
        go.disabled = false;
      }
    });
    document.title = "Sign in · Shadowprice";
    this.root.replaceChildren(element("main", { id: "main", class: "alone" }, element("p", { class: "brand" }, "Shadowprice"), element("h1", {}, "Sign in"),
      reason ? note("warn", element("p", {}, `You were signed out: ${reason}.`)) : "", sheet, this.themeButton()));
    token.focus();
    this.ready();
  }

  signedOut(reason) {
    if (!session.token) return; // several requests may fail at the same time
    session.close();
    this.signIn(reason);
    this.announce(`You were signed out: ${reason}`);
  }

  signOut() {
    session.close();
    location.hash = "";
    this.signIn();
  }

  // ---------------------------------------------------------------- the frame

  frame() {
    const { caller } = this.service;
    this.charts = new Page(clockOf(this.service.slot_seconds, this.service.origin), { pick: (name) => { location.hash = to("job", name).slice(1); }, announce: (text) => this.announce(text) });
    this.nav = element("nav", { "aria-label": "Views" }, ...LINKS.filter(([key]) => this.offers(key)).map(([key, name]) => element("a", { href: to(key), "data-view": key }, name)));
    this.chip = element("span", { class: "chip" });
    this.slot = element("span", { class: "slotclock", title: "the running slot, and the time until the next slot" });
    const who = caller.role === "operator" ? "operator" : caller.tenant;
    this.banner = element("section", { class: "banners", "aria-label": "Notices", hidden: true });
    this.main = element("main", { id: "main", tabindex: "-1" });
    const bar = element("header", { class: "top" }, element("a", { href: to(""), class: "mark", "aria-label": "Shadowprice, cluster" }, element("img", { src: "assets/icon.svg", alt: "", width: "24", height: "24" }), element("span", {}, "Shadowprice")),
      this.nav, element("div", { class: "tools-right" }, this.slot, this.chip, this.themeButton(), element("span", { class: "who", title: `signed in as ${who}` }, who), button("Sign out", () => this.signOut(), { kind: "quiet" })));
    const foot = element("footer", {}, element("p", {}, `Shadowprice ${this.service.version} · policy ${this.service.policy} · ${this.service.observes ? "observes only" : `executor ${this.service.executor}`} · `, element("a", { href: "v1/openapi.json" }, "API")));
    this.root.replaceChildren(bar, this.banner, this.main, foot);
    this.state({ state: "connecting", received: null });
  }

  themeButton() {
    const current = () => document.documentElement.dataset.theme ?? "auto";
    const signs = { auto: "◐", light: "☀", dark: "☾" };
    const made = button(signs[current()], () => {
      const next = THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length];
      if (next === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = next;
      try {
        if (next === "auto") localStorage.removeItem("shadowprice-theme");
        else localStorage.setItem("shadowprice-theme", next);
      } catch {
        // Without storage, the theme lasts until the page is left.
      }
      update();
      this.announce(`theme ${next}`);
      this.charts?.redraw();
    }, { kind: "quiet icon", focus: "theme" });
    const update = () => {
      made.textContent = signs[current()];
      made.title = `theme: ${current()}`;
      made.setAttribute("aria-label", `Theme: ${current()}; change it`);
    };
    update();
    return made;
  }

  // ---------------------------------------------------------------- views

  leave() {
    clearTimeout(this.timer);
    clearTimeout(this.later);
    this.timer = this.later = null;
    this.view?.close?.();
    this.view = null;
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close(); // dialogs belong to the view
    for (const chart of [...(this.charts?.charts ?? [])]) chart.dispose();
  }

  async route() {
    if (!this.service) return;
    const parts = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
    const View = Object.hasOwn(VIEWS, parts[0]) && this.offers(parts[0]) ? VIEWS[parts[0]] : null;
    this.leave();
    for (const link of this.nav.querySelectorAll("a")) {
      if (link.dataset.view === ({ job: "queue", compare: "queue", submit: "queue", server: "", statement: "tenants" }[parts[0]] ?? parts[0])) {
        link.setAttribute("aria-current", "page");
      }
      else link.removeAttribute("aria-current");
    }
    if (!View) {
      this.main.replaceChildren(element("h1", { tabindex: "-1" }, "Page not found"), element("p", {}, element("a", { href: to("") }, "To the cluster")));
      return;
    }
    const view = this.view = new View(this, parts.slice(1));
    document.title = `${view.title} · Shadowprice`;
    view.heading = element("h1", { tabindex: "-1" }, view.title);
    this.main.replaceChildren(element("div", { class: "head" }, view.heading, ...(view.beside ?? [])), view.node);
    if (this.entered) {
      view.heading.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
    this.entered = true;
    await this.refresh();
    this.ready();
  }

  /** Fetch and show the view's data; a problem is shown above the view. */
  async refresh() {
    const { view } = this;
    if (!view || this.busy === view) {
      this.again = true;
      return;
    }
    this.busy = view;
    this.again = false;
    const began = performance.now();
    try {
      await view.refresh();
      if (view === this.view) this.problem = null;
    } catch (problem) {
      if (problem.name === "AbortError") return;
      if (view !== this.view || problem.status === 401) return;
      if (problem.status === undefined) throw problem;
      this.problem = problem;
    } finally {
      if (this.busy === view) this.busy = null;
      this.took = performance.now() - began;
    }
    if (view !== this.view) return;
    view.node.hidden = Boolean(this.problem) && !view.filled;
    view.filled ||= !this.problem;
    this.banners();
    tickMoments(this.main);
    if (this.again) this.soon();
    else if (this.problem?.transient) {
      clearTimeout(this.later);
      this.later = setTimeout(() => this.refresh(), RETRY);
    }
  }

  /** Refresh the view soon, but at most a third of the time, so that slow responses don't pile up. */
  soon() {
    if (this.timer) return;
    this.timer = setTimeout(async () => {
      this.timer = null;
      await this.refresh();
    }, Math.max(SOON, 3 * (this.took ?? 0)));
    clearTimeout(this.later);
    this.later = setTimeout(() => this.refresh(), LATER + 3 * (this.took ?? 0));
  }

  // ---------------------------------------------------------------- events

  receive(events) {
    for (const event of events) {
      if (event.kind === "slot") {
        this.service.slot = event.slot;
        this.service.ends = event.ends;
      }
      if (event.kind === "clock" || event.kind === "warning" || (event.kind === "timespan" && !event.job)) this.moved();
    }
    if (document.hidden) this.missed = true;
    else this.soon();
  }

  /** Fetch the times of slots and the service's state again. */
  async moved() {
    try {
      this.service = { ...this.service, ...await request("service") };
      this.charts.clock = clockOf(this.service.slot_seconds, this.service.origin, this.charts.clock.mode);
      this.banners();
    } catch {
      // The next event causes another attempt.
    }
  }

  /** Handle a state of the connection, as `Live` reports it. */
  state(connection) {
    const previous = this.connection?.state;
    this.connection = connection;
    if (!this.chip?.isConnected && !this.service) return;
    if (connection.state === "live" && previous === "lost") this.announce("Connected again");
    if (connection.missed || (connection.state === "live" && previous === "lost")) {
      this.moved();
      this.soon();
    }
    if (connection.state === "lost" && previous !== "lost") this.announce("The connection is lost; this page may be outdated");
    this.tick();
    if (connection.state !== previous) this.banners();
  }

  banners() {
    if (!this.banner) return;
    const notes = [];
    if (this.connection?.state === "lost") {
      const since = this.connection.received ? new Date(this.connection.received).toLocaleTimeString("en-GB") : "an earlier time";
      notes.push(note("warn", element("p", {}, element("b", {}, "Not live. "), `This page shows the state at ${since}: ${this.connection.why ?? "the connection is lost"}. `), button("Try now", () => this.live.again(), { focus: "retry" })));
    }
    if (this.problem && this.connection?.state !== "lost") notes.push(problemNote(this.problem));
    if (this.service?.health_error) notes.push(note("bad", element("p", {}, `The service is not healthy: ${this.service.health_error}.`)));
    if (this.service?.observes) notes.push(note("info", element("p", {}, "This service only observes: it makes decisions, and runs nothing. ", element("a", { href: to("observed") }, "Compare with what really ran"))));
    for (const warning of this.service?.warnings ?? []) notes.push(note("warn", element("p", {}, `${warning.message[0].toUpperCase()}${warning.message.slice(1)}.`)));
    const ends = this.service?.timespan?.ends;
    if (ends) notes.push(note(this.service.timespan.ended ? "warn" : "info", element("p", {}, this.service.timespan.ended ? "The timespan has ended: nothing runs until an operator moves or removes its end. It ended at " : "The timespan ends, and nothing runs from then on, at ", when(ends), ".")));
    this.banner.hidden = !notes.length;
    swap(this.banner, ...notes);
    document.body.classList.toggle("stale", this.connection?.state === "lost");
  }

  /** Update the countdowns and the state of the connection, once a second. */
  tick() {
    if (!this.service || !this.chip) return;
    if (this.missed && !document.hidden) {
      this.missed = false;
      this.soon();
    }
    tickMoments(this.main);
    const { state, next } = this.connection ?? {};
    const left = next ? Math.max(0, Math.ceil((next - Date.now()) / 1000)) : 0;
    const text = { live: "Live", connecting: "Connecting…", lost: left ? `Offline, again in ${left} s` : "Offline" }[state] ?? "";
    if (this.chip.dataset.state !== state) {
      this.chip.className = `chip ${state}`;
      this.chip.dataset.state = state;
    }
    if (this.chip.textContent !== text) this.chip.textContent = text;
    const { slot, ends } = this.service;
    const until = ends ? (new Date(ends) - now()) / 1000 : null;
    this.slot.textContent = slot === null || slot === undefined ? "idle" : until !== null && until >= 0 && state === "live" ? `slot ${slot} · ${Math.floor(until / 60)}:${String(Math.floor(until % 60)).padStart(2, "0")} left` : `slot ${slot}`;
  }

  // ---------------------------------------------------------------- doing

  /** Show that an action succeeded, and refresh the view. */
  async did(text) {
    this.announce(text);
    const toast = element("div", { class: "toast" }, text);
    document.body.append(toast);
    setTimeout(() => toast.remove(), 4000);
    await this.refresh();
  }

  form(options) {
    return form(options);
  }

  ready() {
    document.documentElement.dataset.ready = "true";
  }
}

/** Open a link in a new tab by script, because only then the tab copies the session storage with the token. */
function openBeside(event) {
  const link = event.target.closest?.('a[href^="#/"]');
  if (!link || !(event.button === 1 || (event.button === 0 && (event.ctrlKey || event.metaKey || event.shiftKey)))) return;
  event.preventDefault();
  open(link.href);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const app = new App();
app.start();
