// The list of jobs, open and closed: their promises, progress and reasons, page by page.

import { request } from "./api.mjs";
import { badge, chips, CLOSED, element, empty, jobLink, OPEN, Pages, progressCell, promiseCell, reasonOf, swap, table, to, when, whereCell } from "./parts.mjs";

const SHOWS = [["open", "Open", OPEN], ["running", "Running", ["running", "resizing"]], ["waiting", "Waiting", ["pending", "admitted", "standby"]], ["finished", "Finished", ["finished"]], ["unsuccessful", "Refused, failed, cancelled", CLOSED.filter((state) => state !== "finished")], ["all", "All", []]];
const LIMIT = 50;

export class QueueView {
  constructor(app, [show = "open", tenant = "", search = ""]) {
    this.app = app;
    this.title = "Jobs";
    this.show = SHOWS.some(([key]) => key === show) ? show : "open";
    this.tenant = tenant;
    this.search = search;
    this.pages = new Pages(app);
    const name = element("input", { type: "search", id: "find-job", value: search, placeholder: "Part of a name", "aria-label": "Find jobs by a part of their name", maxlength: "200", autocomplete: "off", spellcheck: "false" });
    this.find = element("form", { class: "find", role: "search" }, name, element("button", { type: "submit" }, "Find"));
    this.find.addEventListener("submit", (event) => {
      event.preventDefault();
      this.go(name.value && !this.search ? "all" : this.show, this.tenant, name.value); // a new search includes jobs of any state
    });
    this.tools = element("div", { class: "row wrap" });
    this.list = element("div", {});
    this.node = element("div", {}, this.tools, this.list);
    this.beside = [element("span", { class: "grow" }), this.find, element("a", { class: "act", href: to("quote") }, "Ask for a quote"), app.offers("submit") ? element("a", { class: "act primary", href: to("submit") }, "Submit a job") : ""];
  }

  async refresh() {
    const [, , states] = SHOWS.find(([key]) => key === this.show);
    const page = this.pages.wanted;
    const query = { state: states.join(","), tenant: this.tenant, search: this.search, cursor: page.cursor, limit: LIMIT };
    const [response, service, tenants] = await Promise.all([request("jobs", { query }), request("service"), this.app.operates ? request("tenants") : null]);
    Object.assign(this.app.service, service);
    this.draw(response, page, service, tenants?.tenants.map((item) => item.name) ?? []);
  }

  go(show, tenant, search = this.search) {
    const parts = search ? [show, tenant, search] : tenant ? [show, tenant] : [show];
    location.hash = to("queue", ...parts).slice(1);
  }

  draw(response, page, service, tenants) {
    const count = (states) => states.reduce((sum, state) => sum + (service.jobs[state] ?? 0), 0);
    const choices = SHOWS.map(([key, name, states]) => [key, name, states.length && states.every((state) => OPEN.includes(state)) && !this.tenant && !this.search ? count(states) : null]);
    const whose = tenants.length > 1 ? element("select", { "aria-label": "Whose jobs", "data-focus": "whose", onchange: (event) => this.go(this.show, event.currentTarget.value) },
      element("option", { value: "" }, "all tenants"), ...tenants.map((name) => element("option", { value: name, selected: name === this.tenant }, name))) : null;
    swap(this.tools, chips("Show jobs", choices, this.show, (show) => this.go(show, this.tenant)), element("span", { class: "grow" }), whose);
    const closed = response.jobs.length && response.jobs.every((job) => CLOSED.includes(job.state));
    const columns = [
      { head: "Job", cell: (job) => jobLink(job.name, job.id) },
      { head: "State", cell: (job) => badge(job.state) },
      ...(this.app.operates ? [{ head: "Tenant", class: "minor", cell: (job) => (job.tenant === null ? element("span", { class: "soft" }, "–") : job.tenant) }] : []),
      { head: closed ? "Ended" : response.jobs.some((job) => CLOSED.includes(job.state)) ? "Finish" : "Promised finish", cell: (job) => (CLOSED.includes(job.state) && job.state !== "finished" ? when(job.closed) : promiseCell(job)) },
      { head: "Progress", cell: progressCell },
      { head: closed ? "Submitted" : "Runs", class: "minor", cell: (job) => (closed ? when(job.submitted, { brief: true }) : whereCell(job)) },
      { head: "Why", class: "why", cell: (job) => why(job) },
    ];
    const none = { open: "No job is open.", running: "Nothing runs.", waiting: "No job waits." }[this.show] ?? "No jobs.";
    const noMatch = response.next === null ? "No job in this list has this text in its name." : "None of this list's jobs among the newest 20,000 has this text in its name.";
    const nothing = !response.jobs.length && !page.previous;
    swap(this.list,
      nothing ? empty(this.search ? noMatch : none, this.search ? "" : this.show === "open" ? "Submit a job here or with shadowprice submit, or get a quote to see its promise first." : "")
        : table("Jobs, the newest first", columns, response.jobs, { key: (job) => String(job.id), none: response.next === null ? "There are no more." : "None on this page; older jobs follow." }),
      this.pages.buttons(page, response.next, response.jobs.length, true));
  }
}

function why(job) {
  const text = reasonOf(job);
  if (text) return element("span", { class: "clip", title: text }, text);
  if (job.state === "admitted") return element("span", { class: "soft" }, "its first slot hasn't begun");
  if (job.state === "pending") return element("span", { class: "soft" }, "not decided yet");
  if (job.failures) return element("span", { class: "soft" }, `${job.failures} failure${job.failures === 1 ? "" : "s"} before`);
  return element("span", { class: "soft" }, "");
}
