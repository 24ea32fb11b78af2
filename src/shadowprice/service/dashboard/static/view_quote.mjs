// A quote: the decision that a job would get now, without reserving anything.

import { request } from "./api.mjs";
import { row } from "./dialogs.mjs";
import { badge, distance, element, lengthTile, localTimes, note, number, outlookNote, shown, swap, tile, to, problemNote, when } from "./parts.mjs";

// Parse a rate; with a unit, such as 0.5/h, it stays text.
const rate = (text) => text.includes("/") ? text : Number(text);

const KINDS = {
  deadline: { meaning: "the value until a deadline, then 0", fields: [["by", "Deadline", "4h", "from now, such as 4h or 20min"]] },
  sigmoid: { meaning: "falls around a target", fields: [["target", "Target", "4h", "from now, such as 4h"], ["decay", "Decay", "0.5", "steepness per slot, or with a unit, such as 0.5/h; 0: never falls", rate]] },
  linear: { meaning: "falls with every slot", fields: [["slope", "Slope", "-1", "change per slot, or with a unit, such as -1/h; at most 0", rate]] },
  constant: { meaning: "never falls", fields: [] },
  reciprocal: { meaning: "value / (1 + slots)", fields: [] },
};

export class QuoteView {
  constructor(app) {
    this.app = app;
    this.title = "Quote";
    this.inputs = new Map();
    this.result = element("div", { class: "result", "aria-live": "polite" });
    this.place = element("div", {});
    this.node = element("div", {}, element("p", { class: "soft" }, "A quote is the promise and price that a job would get if it were submitted now. It reserves nothing."), element("div", { class: "sides" }, this.place, this.result));
  }

  async refresh() {
    if (this.made) return; // keep what is being typed
    const [servers, tenants] = await Promise.all([request("servers"), this.app.operates ? request("tenants") : null]);
    this.made = true;
    const sizes = new Map();
    for (const server of servers.servers) for (const [name, amount] of Object.entries(server.capacity)) if (!sizes.has(name)) sizes.set(name, amount);
    this.resources = [...sizes.keys()];
    this.draw(sizes, tenants?.tenants.map((item) => item.name) ?? []);
  }

  draw(sizes, tenants) {
    const field = (options) => row(options, this.inputs);
    const group = (legend, ...inside) => element("fieldset", {}, element("legend", {}, legend), element("div", { class: "pairs" }, ...inside));
    const kind = field({ name: "kind", label: "Kind", options: Object.entries(KINDS).map(([name, utility]) => [name, `${name}: ${utility.meaning}`]), value: "deadline", wide: true });
    this.parameters = element("div", { class: "pairs inner" });
    const form = element("form", { class: "fields quote" },
      group("One worker needs", ...[...sizes].slice(0, 6).map(([name, size], at) => field({ name: `worker ${name}`, label: shown(name), value: at === 0 ? "1" : "", placeholder: "0", hint: `servers have ${size}` }))),
      group("Work", field({ name: "steps", label: "Steps", type: "number", value: "400", hint: "mini-batches of the whole job" }), field({ name: "minibatch_time", label: "A mini-batch takes", value: "1s", hint: "on one worker" }),
        field({ name: "max", label: "Maximum workers", type: "number", value: "4" })),
      group("Utility of the completion time", kind, field({ name: "value", label: "Value", type: "number", value: "50" }), this.parameters),
      tenants.length ? group("Owner", field({ name: "tenant", label: "Tenant", options: [["", "no tenant"], ...tenants.map((name) => [name, name])], value: tenants[0] })) : "",
      element("details", {}, element("summary", {}, "More, as JSON"), field({ name: "more", label: "Other keys of a job file", type: "area", rows: 4, wide: true, placeholder: '{"workers": {"min": 2}}' })),
      element("div", { class: "actions" }, element("button", { type: "submit", class: "primary" }, "Ask")));
    this.inputs.get("kind").addEventListener("change", () => this.fill());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.requestQuote(form);
    });
    this.place.replaceChildren(form);
    this.fill();
    this.result.replaceChildren(note("info", element("p", {}, "The quote appears here.")));
  }

  /** Show the fields of the chosen kind of utility. */
  fill() {
    const { fields } = KINDS[this.inputs.get("kind").value];
    for (const name of [...this.inputs.keys()]) if (name.startsWith("utility ")) this.inputs.delete(name);
    this.parameters.replaceChildren(...fields.map(([name, label, value, hint]) => row({ name: `utility ${name}`, label, value, hint }, this.inputs)));
  }

  /** Return the record of the job that the fields describe. */
  job() {
    const value = (name) => this.inputs.get(name)?.value.trim() ?? "";
    const worker = {};
    for (const name of this.resources) {
      const amount = value(`worker ${name}`);
      if (amount && amount !== "0") worker[name] = /^\d+(\.\d+)?$/.test(amount) ? Number(amount) : amount;
    }
    const kind = value("kind"), utility = { kind, value: Number(value("value")) };
    for (const [name, , , , read] of KINDS[kind].fields) utility[name] = (read ?? String)(value(`utility ${name}`));
    const job = { worker, steps: Number(value("steps")), minibatch_time: value("minibatch_time"), workers: { max: Number(value("max")) }, utility };
    if (value("tenant")) job.tenant = value("tenant");
    const more = value("more");
    if (more) {
      try {
        Object.assign(job, JSON.parse(more));
      } catch (error) {
        throw new Error(`the other keys are not JSON: ${error.message}`);
      }
    }
    return job;
  }

  async requestQuote(form) {
    const go = form.querySelector("button[type=submit]");
    go.disabled = true;
    try {
      const job = this.job();
      this.show(await request("quote", { method: "POST", body: job, query: { outlook: true } }), job);
    } catch (problem) {
      swap(this.result, problemNote(problem));
    } finally {
      go.disabled = false;
    }
  }

  show(quote, job) {
    const verdict = { admitted: ["running", "It would be admitted"], queued: ["standby", "It would wait, without a promise"], refused: ["refused", "It would be refused"] }[quote.answer];
    const displaced = Array.isArray(quote.displaced) ? quote.displaced.map(shown).join(", ") : quote.displaced ? `${quote.displaced} jobs of other tenants` : "";
    const tiles = [
      quote.promise ? tile(quote.admitted ? "Promised" : "Earliest completion", when(quote.promise, { brief: true }), [element("span", { "data-moment": quote.promise }, ""), ` · slot ${number(quote.completion)}`]) : null,
      quote.expected ? tile("Expected", when(quote.expected, { brief: true }), element("span", { "data-moment": quote.expected }, distance(quote.expected))) : null,
      quote.predicted ? lengthTile(quote.predicted) : null,
      quote.utility !== null ? tile("Utility", number(quote.utility), "at that completion time") : null,
      quote.price !== null ? tile("Price", number(quote.price), quote.utility !== null ? `${number(quote.utility - quote.price)} ${quote.utility >= quote.price ? "to gain" : "short"}` : "") : null,
      (quote.points?.left ?? null) !== null ? tile("Left", number(quote.points.left), `of ${number(quote.points.held)} points that the tenant holds`) : null,
    ].filter(Boolean);
    swap(this.result, element("h2", {}, badge(verdict[0]), ` ${verdict[1]}`), tiles.length ? element("div", { class: "tiles" }, ...tiles) : null,
      quote.refusal ? note("warn", element("p", {}, localTimes(quote.refusal.message))) : null, quote.message ? note("info", element("p", {}, localTimes(quote.message))) : null,
      quote.outlook ? outlookNote(quote.outlook) : null,
      displaced ? note("warn", element("p", {}, `These jobs would lose their promise: ${displaced}.`)) : null,
      element("details", {}, element("summary", {}, "As a job file"), element("pre", { class: "log", tabindex: "0" }, ...JSON.stringify({ name: "my-job", ...job }, null, 2).split("\n").flatMap((line) => [line, element("br")]))),
      element("p", { class: "remark" }, `This quote is for slot ${number(quote.slot)}; prices change with every submission. `, element("a", { href: to("prices") }, "See prices")));
    this.app.announce(verdict[1]);
  }
}
