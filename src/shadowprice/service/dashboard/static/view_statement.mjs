// A tenant's statement: its balance, and the entries that changed it.

import { request, now, part } from "./api.mjs";
import { button, chips, element, empty, Figure, jobLink, note, number, Pages, percent, shown, swap, table, tile, to, when } from "./parts.mjs";
import { clockOf } from "./timeline.mjs";

const LIMIT = 50, DRAWN = 1000; // maximum number of entries in the table and in the chart
const KINDS = {
  grant: { colour: "c2", meaning: "granted" },
  expiry: { colour: "c7", meaning: "expired" },
  debit: { colour: "c0", meaning: "price of a job" },
  refund: { colour: "c3", meaning: "unused part of a job's price" },
  payment: { colour: "c1", meaning: "paid by another tenant that used its share" },
};
const SPANS = [["0", "This period"], ["1", "Previous period"], ["all", "All"]];

export class StatementView {
  constructor(app, [name = ""]) {
    this.app = app;
    this.name = name;
    this.title = `Points of ${shown(name)}`;
    this.span = null;
    this.pages = new Pages(app);
    this.tiles = element("div", {});
    this.tools = element("div", { class: "row" });
    this.figure = new Figure(app, "Held", "Points that can be spent. Admission debits the price of a job; the unused part is refunded when the job ends.");
    this.list = element("div", {});
    this.node = element("div", {}, this.tiles, this.tools, this.figure.node, this.list);
    this.beside = app.operates ? [element("span", { class: "grow" }), button("Give points", () => this.give(), { focus: "give" }), button("Change the budget", () => this.change(), { focus: "change", kind: "primary" })] : [];
  }

  async refresh() {
    const path = `tenants/${part(this.name)}/statement`, wanted = this.pages.wanted;
    const whole = await request(path, { query: { limit: DRAWN, back: this.span === null || this.span === "all" ? null : this.span } });
    this.budget = whole.budget;
    if (this.span === null && whole.budget) {
      this.span = "0";
      return this.refresh();
    }
    const page = wanted.cursor === null ? { entries: whole.entries.slice(0, LIMIT), next: whole.entries.length > LIMIT ? whole.entries[LIMIT - 1].id : null }
      : await request(path, { query: { limit: LIMIT, cursor: wanted.cursor, back: whole.budget && this.span !== "all" ? this.span : null } });
    return this.draw(whole, page, wanted);
  }

  draw(response, page, wanted) {
    const { account, budget } = response;
    swap(this.tiles, account ? element("div", { class: "tiles" },
      tile("Holds", number(account.held), account.held < 0 ? "below 0: only jobs that cost nothing are admitted" : `of ${number(budget.points)} every ${budget.period}`),
      tile("In open jobs", number(account.reserved_points), "paid, and not used yet"),
      tile("Spent", number(account.spent), `${percent(budget.points ? account.spent / budget.points : 0)} of a period's points`),
      tile("Next period", when(account.ends, { brief: true }), [element("span", { "data-moment": account.ends }, ""), element("span", {}, budget.carry === "all" ? "all points are kept" : budget.carry ? `at most ${number(budget.carry)} points are kept` : "remaining points expire")]))
      : note("info", element("p", {}, `${shown(this.name)} has no budget: it spends without limit.`)));
    swap(this.tools, budget ? chips("Which entries", SPANS, this.span, (span) => this.choose(span)) : null);
    this.drawChart(response);
    const columns = [
      { head: "When", cell: (row) => when(row.at, { seconds: true }) },
      { head: "What", cell: (row) => element("span", { class: `badge b-${KINDS[row.kind]?.colour ?? "c7"}`, title: KINDS[row.kind]?.meaning ?? "" }, row.kind) },
      { head: "Points", class: "num", cell: (row) => exact(row.points, row.points > 0 ? "+" : "") },
      { head: "Balance", class: "num", cell: (row) => exact(row.balance) },
      { head: "Job", cell: (row) => (row.job === null ? element("span", { class: "soft" }, "–") : jobLink(row.job, row.job_id)) },
      { head: "Note", class: "why", cell: (row) => (row.other !== null ? `from ${shown(row.other)}` : row.note || element("span", { class: "soft" }, "–")) },
    ];
    const sums = Object.entries(response.sums).filter(([, points]) => points).map(([kind, points]) => `${kind} ${number(points)}`).join(" · ");
    swap(this.list, page.entries.length ? table("Entries, the newest first", columns, page.entries, { key: (row) => String(row.id) }) : empty("No entries", "Nothing was granted or paid in this time."),
      element("p", { class: "remark" }, `From ${number(response.opening)} to ${number(response.closing)}${sums ? `: ${sums}` : ""}. As a spreadsheet: shadowprice statement ${shown(this.name)} -o csv. `, element("a", { href: to("tenants") }, "All tenants")),
      this.pages.buttons(wanted, page.next, page.entries.length));
  }

  drawChart(response) {
    const entries = [...response.entries].reverse();
    if (!entries.length) {
      this.figure.show(null);
      return;
    }
    const { slot_seconds: slot, origin } = this.app.service;
    const place = (moment) => (new Date(moment) - new Date(origin)) / 1000 / slot;
    const shownTo = this.span === "1" ? place(entries.at(-1).at) : place(now());
    const first = entries[0], xs = [place(first.at), ...entries.map((item) => place(item.at))];
    const last = Math.max(shownTo, xs.at(-1) + 1e-6);
    const clock = clockOf(slot, origin);
    const series = [{ name: "held", colour: 0, values: [first.balance - first.points, ...entries.map((item) => item.balance)] }];
    this.figure.show({ kind: "slotLines", slots: true, steps: true, x: xs, end: last, x_label: clock.title, y_label: "points", fill: true, series });
  }

  async choose(span) {
    this.span = span;
    this.pages.reset();
    await this.app.refresh();
  }

  async change() {
    if (await changeBudget(this.app, this.name, this.budget)) await this.app.did("The budget is changed");
  }

  async give() {
    const { app, name } = this;
    const done = await app.form({
      title: `Give points to ${shown(name)}`, action: "Give them",
      body: [element("p", {}, "They are added to the balance once, and expire at the end of the period like other points.")],
      fields: [{ name: "points", label: "Points", required: true, hint: "such as 50 or 2.5" }, { name: "note", label: "Note", placeholder: "reason" }],
      send: ({ points, note: text }) => request(`tenants/${part(name)}/grants`, { method: "POST", body: { points: Number(points), note: text } }),
    });
    if (done) await app.did("The points are given");
  }
}

/** Return points with two decimals, amounts below 0.01 with six; the title has all digits. */
function exact(points, sign = "") {
  const digits = Math.abs(points) < 0.01 ? 6 : 2;
  return element("span", { title: String(points) }, `${sign}${points.toLocaleString("en", { minimumFractionDigits: points ? 2 : 0, maximumFractionDigits: digits })}`);
}

/** Show a dialog that changes a tenant's budget; an empty number of points removes the budget. */
export function changeBudget(app, name, budget) {
  return app.form({
    title: `The budget of ${shown(name)}`, action: "Change it",
    body: [element("p", {}, "The balance changes by the same number of points. Admitted jobs are paid already.")],
    fields: [
      { name: "points", label: "Points", value: budget ? String(budget.points) : "", hint: "per period; empty for no budget, to spend without limit" },
      { name: "period", label: "Every", value: budget?.period ?? "7d", hint: "such as 7d, 1d or 12h" },
      { name: "carry", label: "Kept at the end of a period", value: String(budget?.carry ?? 0), hint: "maximum points, or all" },
      { name: "since", label: "A period begins", value: budget?.since ?? "", hint: "such as 2026-11-23T00:00:00Z; empty for midnight UTC, weeks on Monday" },
    ],
    send: ({ points, period, carry, since }) => request(`tenants/${part(name)}`, {
      method: "PUT",
      body: { budget: points.trim() === "" ? null : { points: Number(points), period, carry: carry.trim() === "all" ? "all" : Number(carry), ...(since ? { since } : {}) } },
    }),
  });
}
