// Tenants: their shares, budgets and open jobs, and all tokens.

import { request, now, part } from "./api.mjs";
import { bar, button, element, empty, number, shown, STATES, swap, table, to, when } from "./parts.mjs";
import { amounts } from "./view_cluster.mjs";
import { changeBudget } from "./view_statement.mjs";

export class TenantsView {
  constructor(app) {
    this.app = app;
    this.title = "Tenants";
    this.list = element("div", {});
    this.tokens = element("section", { hidden: !app.operates });
    this.node = element("div", {}, this.list, this.tokens);
    this.beside = app.operates ? [element("span", { class: "grow" }), button("Add a tenant", () => this.put(null), { kind: "primary" })] : [];
  }

  async refresh() {
    const [response, tokens] = await Promise.all([request("tenants"), this.app.operates ? request("tokens") : null]);
    this.draw(response.tenants);
    if (tokens) this.drawTokens(tokens.tokens, response.tenants.map((item) => item.name));
  }

  draw(tenants) {
    const open = (item) => Object.values(item.jobs).reduce((a, b) => a + b, 0);
    const columns = [
      { head: "Tenant", cell: (row) => element("a", { href: to("queue", "open", row.name), class: "jobname", title: row.name, "data-focus": `tenant ${row.name}` }, row.name) },
      { head: "Share", cell: (row) => (Object.keys(row.share).length ? Object.entries(row.share).map(([name, amount]) => `${name} ${amount}`).join(" · ") : element("span", { class: "soft" }, "no share")) },
      { head: "Budget", cell: (row) => (row.budget ? `${number(row.budget.points)} points every ${row.budget.period}` : element("span", { class: "soft" }, "no limit")) },
      { head: "Holds", cell: (row) => this.held(row) },
      { head: "Spent", class: "num", cell: (row) => (row.account ? number(row.account.spent) : element("span", { class: "soft" }, "–")) },
      { head: "Open jobs", class: "num", cell: (row) => number(open(row)) },
      { head: "By state", cell: (row) => (open(row) ? element("span", { class: "states" }, ...Object.entries(row.jobs).map(([state, count]) => element("span", { class: `badge b-${STATES[state]?.colour ?? "c7"}` }, `${number(count)} ${state}`))) : element("span", { class: "soft" }, "–")) },
    ];
    if (this.app.operates) {
      columns.push({ head: "", class: "acts", cell: (row) => element("span", { class: "acts" },
        button("Share", () => this.put(row), { focus: `share ${row.name}`, "aria-label": `Change the share of ${row.name}` }),
        button("Budget", () => this.budget(row), { focus: `budget ${row.name}`, "aria-label": `Change the budget of ${row.name}` }),
        button("Token", () => this.token(row.name), { focus: `token ${row.name}`, "aria-label": `Make a token for ${row.name}` }),
        button("Remove", () => this.remove(row), { kind: "quiet", focus: `remove ${row.name}`, "aria-label": `Remove ${row.name}`, disabled: open(row) > 0, title: open(row) ? "it has open jobs" : "" })) });
    }
    swap(this.list, tenants.length ? table("Tenants", columns, tenants, { key: (row) => row.name }) : empty("No tenants", "All jobs share the cluster. Add a tenant to create tokens with fewer rights than yours."));
  }

  /** Return a tenant's points as a link to its statement. */
  held(tenant) {
    const text = tenant.account ? number(tenant.account.held) : "statement";
    const link = element("a", { href: to("statement", tenant.name), "data-focus": `held ${tenant.name}`, "aria-label": `${text}: statement of ${tenant.name}` }, text);
    return tenant.account ? [bar(tenant.budget.points ? tenant.account.held / tenant.budget.points : 0, `${tenant.name} holds ${number(tenant.account.held)} of ${number(tenant.budget.points)} points`), " ", link] : link;
  }

  async budget(tenant) {
    if (await changeBudget(this.app, tenant.name, tenant.budget)) await this.app.did("The budget is changed");
  }

  drawTokens(tokens, tenants) {
    const columns = [
      { head: "Token", class: "num", cell: (row) => number(row.id) },
      { head: "For", cell: (row) => (row.role === "operator" ? "an operator" : row.tenant) },
      { head: "Note", cell: (row) => row.note || element("span", { class: "soft" }, "–") },
      { head: "Created", class: "minor", cell: (row) => when(row.created, { brief: true }) },
      { head: "Valid until", cell: (row) => (row.revoked ? ["revoked ", when(row.revoked, { brief: true })] : row.expires ? [new Date(row.expires) < now() ? "expired " : "", when(row.expires)] : element("span", { class: "soft" }, "until it is revoked")) },
      { head: "", class: "acts", cell: (row) => (row.revoked ? "" : button("Revoke", () => this.revoke(row), { kind: "quiet", focus: `revoke ${row.id}`, "aria-label": `Revoke token ${row.id}` })) },
    ];
    swap(this.tokens, element("div", { class: "row" }, element("h2", {}, "Tokens"), element("span", { class: "grow" }), button("Make a token", () => this.token(null, tenants))),
      table("Tokens", columns, tokens, { key: (row) => String(row.id) }), element("p", { class: "remark" }, "A token is shown once, when it is created."));
  }

  async put(tenant) {
    const { app } = this;
    const done = await app.form({
      title: tenant ? `The share of ${shown(tenant.name)}` : "Add a tenant", action: tenant ? "Change it" : "Add",
      fields: [...(tenant ? [] : [{ name: "name", label: "Name", required: true }]),
        { name: "share", label: "Share", type: "area", rows: 3, value: tenant ? Object.entries(tenant.share).map(([name, amount]) => `${name}: ${amount}`).join("\n") : "", hint: "One amount per line, such as gpu: 4; empty for no share" }],
      send: ({ name, share }) => request(`tenants/${part(tenant ? tenant.name : name)}`, { method: "PUT", body: { share: amounts(share) } }),
    });
    if (done) await app.did(tenant ? "The share is changed" : "The tenant is added");
  }

  async remove(tenant) {
    const { app } = this;
    const done = await app.form({ title: `Remove ${shown(tenant.name)}?`, danger: true, action: "Remove it", body: [element("p", {}, "Its share and its budget are removed too. Its tokens stay valid until they are revoked.")], send: () => request(`tenants/${part(tenant.name)}`, { method: "DELETE" }) });
    if (done) await app.did(`${shown(tenant.name)} is removed`);
  }

  async token(tenant, tenants = []) {
    const { app } = this;
    const made = await app.form({
      title: tenant === null ? "Make a token" : `A token for ${shown(tenant)}`, action: "Make it",
      fields: [...(tenant === null ? [{ name: "tenant", label: "For", options: [["", "an operator"], ...tenants.map((name) => [name, name])], value: tenants[0] ?? "" }] : []),
        { name: "expires", label: "Valid for", value: "90d", hint: "Such as 90d or 12h; empty for a token that doesn't expire" }, { name: "note", label: "Note", placeholder: "who uses it" }],
      send: (values) => {
        const owner = tenant ?? values.tenant;
        return request("tokens", { method: "POST", body: { ...(owner ? { tenant: owner } : { role: "operator" }), ...(values.expires ? { expires: values.expires } : {}), note: values.note } });
      },
    });
    if (!made) return;
    const field = element("input", { type: "text", readonly: "", value: made.token, "aria-label": "The token", class: "tokenfield" });
    await app.form({
      title: "The token", action: "Close", body: [element("p", {}, "Copy it now: it is not shown again."), field, button("Copy", async () => {
        field.select();
        try {
          await navigator.clipboard.writeText(made.token);
          app.announce("copied");
        } catch {
          app.announce("select it and copy it by hand");
        }
      })],
      send: async () => true,
    });
    await app.refresh();
  }

  async revoke(token) {
    const { app } = this;
    const done = await app.form({ title: `Revoke token ${token.id}?`, danger: true, action: "Revoke it", body: [element("p", {}, `Its user (${token.role === "operator" ? "an operator" : shown(token.tenant)}${token.note ? `, “${shown(token.note)}”` : ""}) is signed out at once.`)], send: () => request(`tokens/${token.id}`, { method: "DELETE" }) });
    if (done) await app.did(`Token ${token.id} is revoked`);
  }
}
