// Submit a command: the record that `shadowprice submit -- COMMAND` sends, with what is wrong beside each field.

import { ask } from "./api.mjs";
import { row } from "./dialogs.mjs";
import { element, shown, to, trouble } from "./parts.mjs";

/** Fields by the location of a diagnostic in the record, the longest location first. */
const FIELD_AT = [["run.command", "command"], ["run.workdir", "workdir"], ["run.env", "env"], ["run.retries", "retries"], ["worker.cpu", "cpus"], ["worker.memory", "memory"], ["worker", "gpus"],
  ["minibatch_time", "time"], ["minibatches", "steps"], ["priority", "priority"], ["tenant", "tenant"], ["name", "name"], ["by", "by"]];
const SUFFIX = "23456789abcdefghjkmnpqrstuvwxyz";

export class SubmitView {
  constructor(app) {
    this.app = app;
    this.title = "Submit";
    this.inputs = new Map();
    this.faults = element("div", {});
    this.node = element("div", {});
  }

  async refresh() {
    if (this.made) return; // keep what is being typed
    const tenants = this.app.operates ? (await ask("tenants")).tenants.map((one) => one.name) : [];
    this.made = true;
    this.draw(tenants);
  }

  draw(tenants) {
    const field = (options) => row(options, this.inputs);
    const group = (legend, ...inside) => element("fieldset", {}, element("legend", {}, legend), element("div", { class: "pairs" }, ...inside));
    const form = element("form", { class: "fields submit", novalidate: true },
      group("Command", field({ name: "command", label: "Command", type: "area", rows: 2, wide: true, placeholder: "python train.py --lr 0.1", hint: "A line for the shell" }),
        field({ name: "workdir", label: "Directory", placeholder: "/home/me/project", hint: "Absolute; by default one of the job's own" }),
        field({ name: "env", label: "Environment", type: "area", rows: 2, wide: true, placeholder: "SEED=1", hint: "A NAME=VALUE a line" })),
      group("Needs", field({ name: "gpus", label: "GPUs", placeholder: "2", hint: "2, or a100:2 for a kind" }), field({ name: "cpus", label: "CPUs", placeholder: "1" }), field({ name: "memory", label: "Memory", placeholder: "16GiB" }),
        field({ name: "time", label: "Expected run time", value: "1h", hint: "Such as 20min or 3h" }), field({ name: "steps", label: "Steps", hint: "If it reports progress" })),
      group("When", field({ name: "by", label: "Deadline", placeholder: "6h", hint: "A duration from now on, such as 6h" }),
        field({ name: "priority", label: "Priority", options: [["", "normal"], ["low", "low"], ["high", "high"], ["urgent", "urgent"]], value: "" }), field({ name: "retries", label: "Allowed failures", placeholder: "0" })),
      group("Job", field({ name: "name", label: "Name", hint: "By default generated from the command" }),
        tenants.length ? field({ name: "tenant", label: "Tenant", options: [["", "no tenant"], ...tenants.map((name) => [name, shown(name)])], value: tenants[0] }) : ""),
      this.faults, element("div", { class: "actions" }, element("button", { type: "submit", class: "primary" }, "Submit")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(form);
    });
    this.node.replaceChildren(element("p", { class: "soft" }, "Submit a command with the resources of one worker. ", element("a", { href: to("quote") }, "A quote"), " says beforehand what a job would be promised."), form);
  }

  /** Return the job's record; throw the diagnostics of fields that can't be read. */
  record() {
    const value = (name) => this.inputs.get(name)?.value.trim() ?? "";
    const errors = [], wrong = (location, message, hint) => errors.push({ location, message, hint });
    const count = (name, location) => {
      if (!value(name)) return undefined;
      if (!/^\d+(\.\d+)?$/.test(value(name))) wrong(location, `expected a number, got ${JSON.stringify(shown(value(name)))}`, "");
      return Number(value(name));
    };
    if (!value("command")) wrong("run.command", "is missing", "write for example python train.py");
    const worker = {}, [, kind, gpus] = value("gpus").match(/^(?:([\w.-]+):)?(\d+(?:\.\d{1,3})?)$/) ?? [];
    if (gpus !== undefined) worker[kind === undefined ? "gpu" : `gpu/${kind}`] = Number(gpus);
    else if (value("gpus")) wrong("worker", `expected a number, got ${JSON.stringify(shown(value("gpus")))}`, "write 2, or a100:2 for a kind");
    const cpus = count("cpus", "worker.cpu");
    if (cpus !== undefined) worker.cpu = cpus;
    else if (!value("gpus")) worker.cpu = 1;
    if (value("memory")) worker.memory = value("memory");
    const env = {};
    for (const line of value("env").split("\n").filter((one) => one.trim())) {
      const [, name, text] = line.match(/^\s*([^=\s]+)=(.*)$/) ?? [];
      if (name === undefined) wrong("run.env", `${JSON.stringify(shown(line.trim()))} is not like NAME=VALUE`, "");
      else env[name] = text;
    }
    const steps = count("steps", "minibatches"), retries = count("retries", "run.retries");
    const time = value("time") || "1h";
    const work = steps === undefined ? { minibatches: 1, minibatch_time: time } : { minibatches: steps, minibatch_time: this.perStep(time, steps, wrong) };
    if (errors.length) throw Object.assign(new Error("the form has problems"), { errors });
    const optional = (entries) => Object.fromEntries(Object.entries(entries).filter(([, one]) => one !== undefined && one !== "" && !(typeof one === "object" && !Object.keys(one).length)));
    return { name: value("name") || generatedName(value("command")), ...optional({ tenant: value("tenant"), by: value("by"), priority: value("priority") }), ...work, worker,
      run: { command: value("command"), ...optional({ workdir: value("workdir"), env, retries }) } };
  }

  /** Return the time of one step of a run of a given time, which has one unit. */
  perStep(time, steps, wrong) {
    const [, amount, unit] = time.match(/^(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)$/) ?? [];
    if (unit === undefined || !(steps > 0)) {
      wrong(unit === undefined ? "minibatch_time" : "minibatches", unit === undefined ? `expected a duration, got ${JSON.stringify(shown(time))}` : "expected a number above 0", unit === undefined ? "write 20min or 3h" : "");
      return time;
    }
    const seconds = Number(amount) * { ms: 0.001, s: 1, min: 60, h: 3600, d: 86_400 }[unit];
    return `${Number((seconds / steps).toPrecision(9))}s`;
  }

  async send(form) {
    const go = form.querySelector("button[type=submit]");
    go.disabled = true;
    this.mark([]);
    this.faults.replaceChildren();
    try {
      const job = await ask("jobs", { method: "POST", body: this.record() });
      this.app.say(`Submitted ${shown(job.name)}`);
      location.hash = to("job", job.name).slice(1);
    } catch (problem) {
      const remaining = this.mark(problem.errors ?? []);
      if (remaining.length || !problem.errors?.length) this.faults.replaceChildren(trouble(Object.assign(problem, { errors: remaining })));
      (form.querySelector("[aria-invalid]") ?? go).focus();
    } finally {
      go.disabled = false;
    }
  }

  /** Show diagnostics at their fields; return those that belong to none. */
  mark(errors) {
    for (const input of this.inputs.values()) {
      const host = input.closest(".field"), before = host.querySelector(".fault");
      if (!before) continue;
      const described = (input.getAttribute("aria-describedby") ?? "").split(" ").filter((id) => id && id !== before.id).join(" ");
      if (described) input.setAttribute("aria-describedby", described);
      else input.removeAttribute("aria-describedby");
      input.removeAttribute("aria-invalid");
      before.remove();
    }
    return errors.filter((error) => {
      const where = (error.location ?? "").replace(/^(job|body)(: |\.|$)/, "");
      const [, name] = FIELD_AT.find(([location]) => where === location || where.startsWith(`${location}.`) || where.startsWith(`${location}[`)) ?? [];
      const input = this.inputs.get(name);
      if (!input) return true;
      const host = input.closest(".field"), text = `${error.message}${error.hint ? `; ${error.hint}` : ""}`;
      let fault = host.querySelector(".fault");
      if (!fault) {
        fault = element("small", { class: "fault", id: `${input.id}-fault` });
        host.append(fault);
        input.setAttribute("aria-invalid", "true");
        input.setAttribute("aria-describedby", `${input.getAttribute("aria-describedby") ?? ""} ${fault.id}`.trim());
      }
      fault.append(element("span", {}, shown(text)), element("br"));
      return false;
    });
  }

  close() {}
}

/** Return a name such as `train-x7k2mf`: the script or program, and random characters. */
function generatedName(command) {
  const words = command.split(/\s+/), script = words.find((word) => /\.(py|sh)$/.test(word)) ?? words[0];
  const stem = script.split("/").pop().replace(/\.[^.]*$/, "").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 40).replace(/-+$/, "");
  return `${stem || "job"}-${[...crypto.getRandomValues(new Uint32Array(6))].map((value) => SUFFIX[value % SUFFIX.length]).join("")}`;
}
