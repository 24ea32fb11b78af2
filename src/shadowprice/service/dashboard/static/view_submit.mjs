// Submit a shell command. Unlike `shadowprice submit -- COMMAND`, it sends no environment variables and no directory of the user.

import { request, now } from "./api.mjs";
import { row } from "./dialogs.mjs";
import { element, reference, shown, to, problemNote } from "./parts.mjs";

/** Names of fields by the location of a diagnostic in the job's record; longer locations come first. */
const FIELD_AT = [["run.command", "command"], ["run.workdir", "workdir"], ["run.env", "env"], ["run.retries", "retries"], ["worker.cpu", "cpus"], ["worker.memory", "memory"], ["worker", "gpus"],
  ["minibatch_time", "time"], ["walltime", "walltime"], ["steps", "steps"], ["priority", "priority"], ["tenant", "tenant"], ["name", "name"], ["by", "by"]];
export const PRIORITIES = [["", "normal"], ["low", "low"], ["high", "high"], ["urgent", "urgent"]];
const SUFFIX = "23456789abcdefghjkmnpqrstuvwxyz"; // characters of generated names: none looks like another
const DURATION = /^((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([a-z]+)$/;
const UNIT_SECONDS = new Map([["us", 1e-6], ["ms", 1e-3], ["s", 1], ["sec", 1], ["m", 60], ["min", 60], ["h", 3600], ["d", 86_400], ["w", 604_800]]);
const CLOCK_TIME = /^(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)?$/;
const DATE = /^(\d{4})-?(\d{2})-?(\d{2})(?:[T ](\d{2})(?::?(\d{2})(?::?(\d{2})(?:[.,]\d+)?)?)?)?$/;
/** An assignment before a command, such as TOKEN="a b"; a generated name leaves it out, because its value may be secret. */
const ASSIGNMENT = /(?<=^|[\s;&|(])\w+\+?=(?:"(?:\\.|[^"\\])*(?:"|$)|'[^']*(?:'|$)|\\.|[^\s;&|"'\\])*/gs;

export class SubmitView {
  constructor(app) {
    this.app = app;
    this.title = "Submit";
    this.inputs = new Map();
    this.key = [...crypto.getRandomValues(new Uint32Array(4))].join("-"); // equal when a request is repeated
    this.faults = element("div", {});
    this.node = element("div", {});
  }

  async refresh() {
    if (this.made) return; // keep what is being typed
    const tenants = this.app.operates ? (await request("tenants")).tenants.map((item) => item.name) : [];
    this.made = true;
    this.draw(tenants);
  }

  draw(tenants) {
    const field = (options) => row(options, this.inputs);
    const group = (legend, ...inside) => element("fieldset", {}, element("legend", {}, legend), element("div", { class: "pairs" }, ...inside));
    const form = element("form", { class: "fields submit", novalidate: true },
      group("Command", field({ name: "command", label: "Command", type: "area", rows: 2, wide: true, placeholder: "python train.py --lr 0.1", hint: "Run by the shell; may have several lines. Secrets belong in Environment, whose values are hidden" }),
        field({ name: "workdir", label: "Directory", wide: true, placeholder: "/home/me/project", hint: "Absolute path; by default a new directory of the job" }),
        field({ name: "env", label: "Environment", type: "area", rows: 2, wide: true, placeholder: "SEED=1", hint: "One NAME=VALUE per line" })),
      group("Needs", field({ name: "gpus", label: "GPUs", placeholder: "2", hint: "2, or a100:2 for a kind" }), field({ name: "cpus", label: "CPUs", placeholder: "1" }), field({ name: "memory", label: "Memory", placeholder: "16GiB" }),
        field({ name: "time", label: "Expected run time", placeholder: "3h", hint: "By default predicted from your earlier jobs" }), field({ name: "walltime", label: "Time limit", placeholder: "8h", hint: "A job that runs longer is stopped" }), field({ name: "steps", label: "Steps", hint: "Number of steps, if the command reports progress" })),
      group("When", field({ name: "by", label: "Deadline", placeholder: "6h", hint: "Such as 6h, 18:00 or 2026-11-23 18:00" }),
        field({ name: "priority", label: "Priority", options: PRIORITIES, value: "" }), field({ name: "retries", label: "Allowed failures", placeholder: "0" })),
      group("Job", field({ name: "name", label: "Name", hint: "By default generated from the command" }),
        tenants.length ? field({ name: "tenant", label: "Tenant", options: [["", "no tenant"], ...tenants.map((name) => [name, shown(name)])], value: "" }) : ""),
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
      if (/^(\d+\.?\d*|\.\d+)$/.test(value(name))) return Number(value(name));
      wrong(location, `expected a number, got ${JSON.stringify(shown(value(name)))}`, "");
      return undefined;
    };
    if (!value("command")) wrong("run.command", "is missing", "write for example python train.py");
    const worker = {}, [, kind, gpus] = value("gpus").match(/^(?:([\w.-]+):)?(\d+(?:\.\d{1,3})?)$/) ?? [];
    if (gpus !== undefined) worker[kind === undefined ? "gpu" : `gpu/${kind}`] = Number(gpus);
    else if (value("gpus")) wrong("worker", `expected a number, got ${JSON.stringify(shown(value("gpus")))}`, "write 2, or a100:2 for a kind");
    const cpus = count("cpus", "worker.cpu");
    if (cpus !== undefined) worker.cpu = cpus;
    else if (!value("gpus")) worker.cpu = 1;
    if (value("memory")) worker.memory = value("memory");
    const env = Object.create(null); // a variable may be called __proto__
    for (const line of this.inputs.get("env").value.split("\n").filter((text) => text.trim())) {
      const [, name, text] = line.match(/^\s*([^=\s]+)=(.*)$/s) ?? [];
      if (name === undefined) wrong("run.env", `expected NAME=VALUE, got ${JSON.stringify(shown(line.trim()))}`, "");
      else if (name in env) wrong("run.env", `${JSON.stringify(shown(name))} occurs twice`, "");
      else env[name] = text;
    }
    const steps = count("steps", "steps"), retries = count("retries", "run.retries");
    const time = value("time");
    const work = !time ? { steps } : steps === undefined ? { steps: 1, minibatch_time: time } : { steps, minibatch_time: timePerStep(time, steps, wrong) };
    if (errors.length) throw Object.assign(new Error("the form has problems"), { errors });
    const optional = (entries) => Object.fromEntries(Object.entries(entries).filter(([, item]) => item !== undefined && item !== "" && !(typeof item === "object" && !Object.keys(item).length)));
    return { name: value("name") || this.nameFor(value("command")), ...optional({ tenant: value("tenant"), by: absoluteMoment(value("by")), priority: value("priority"), walltime: value("walltime"), ...work }), worker,
      run: { command: value("command"), ...optional({ workdir: value("workdir"), env, retries }) } };
  }

  /** Return the generated name of a command. It only changes with the command, so that a repeated request starts no second job. */
  nameFor(command) {
    if (this.generated?.command !== command) this.generated = { command, name: generatedName(command) };
    return this.generated.name;
  }

  async send(form) {
    const submitButton = form.querySelector("button[type=submit]");
    submitButton.disabled = true;
    this.mark([]);
    this.faults.replaceChildren();
    try {
      const job = await request("jobs", { method: "POST", body: this.record(), key: this.key });
      this.app.announce(`Submitted ${shown(job.name)}`);
      if (this.app.view === this) location.hash = to("job", reference(job.name, job.id)).slice(1);
    } catch (problem) {
      submitButton.disabled = false; // a disabled button can't get the focus
      const errors = problem.code === "name-conflict" ? [{ location: "name", message: problem.message }] : problem.errors ?? [];
      const remaining = this.mark(errors);
      if (remaining.length || !errors.length) this.faults.replaceChildren(problemNote(Object.assign(problem, { errors: remaining })));
      (form.querySelector("[aria-invalid]") ?? submitButton).focus();
      if (this.app.view !== this) this.app.announce(`Not submitted: ${shown(problem.message)}`);
    }
  }

  /** Show diagnostics at their fields; return diagnostics without a field. */
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
}

/** Return the time of one step of a run, as `shadowprice submit --time TIME --steps STEPS` computes it; `wrong` gets a diagnostic. */
export function timePerStep(time, steps, wrong) {
  const [, amount, unit] = time.match(DURATION) ?? [];
  if (!UNIT_SECONDS.has(unit)) {
    wrong("minibatch_time", `expected a duration, got ${JSON.stringify(shown(time))}`, "write 20min or 3h");
    return time;
  }
  if (!(steps > 0)) return time; // the service will refuse the steps
  return `${Number((Number(amount) * UNIT_SECONDS.get(unit) / steps).toPrecision(9))}s`;
}

/** Return a deadline as the service reads it: a local date, or the next occurrence of a local clock time, in UTC; other text unchanged. */
export function absoluteMoment(text) {
  const clock = text.match(CLOCK_TIME), date = text.match(DATE);
  if (!clock && !date) return text;
  const moment = new Date(now());
  const [year, month, day, ...time] = clock
    ? [moment.getFullYear(), moment.getMonth() + 1, moment.getDate(), ...clock.slice(1)].map((part) => Number(part ?? 0))
    : date.slice(1).map((part) => Number(part ?? 0));
  if (time[0] > 23 || time[1] > 59 || time[2] > 59 || new Date(year, month - 1, day).getMonth() !== month - 1) return text;
  const from = (days) => new Date(year, month - 1, day + days, ...time);
  const instant = clock && from(0) <= moment ? from(1) : from(0);
  return instant.toISOString().replace(/\.\d+Z$/, "Z");
}

/** Return a name such as `train-x7k2mf`: the script or program of a command, and random characters. */
export function generatedName(command) {
  const words = command.replace(ASSIGNMENT, "").split(/\s+/).filter(Boolean);
  const script = words.find((word) => /\.(py|sh)$/.test(word)) ?? words[0] ?? "";
  const stem = script.split("/").pop().replace(/\.[^.]*$/, "").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 40).replace(/-+$/, "");
  let suffix = "";
  // Without a digit, the suffix would look like a word. The service would treat it as a part of the name, and find no similar jobs.
  while (!/\d/.test(suffix)) suffix = [...crypto.getRandomValues(new Uint32Array(6))].map((value) => SUFFIX[value % SUFFIX.length]).join("");
  return `${stem || "job"}-${suffix}`;
}
