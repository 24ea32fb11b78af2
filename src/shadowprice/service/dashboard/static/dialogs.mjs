// Native dialogs, which keep the focus inside and restore it when they close.

import { element, problemNote } from "./parts.mjs";

/**
 * Show a dialog that asks for values or a confirmation, and sends them; it stays open if that fails.
 *
 * `fields` are {name, label, value, hint, type, options, required}; `send` gets the values and may throw a `Problem`.
 * Returns the result of `send` (true if it has none), or null if the user cancels.
 */
export function form({ title, body = [], fields = [], action, danger = false, send }) {
  const inputs = new Map();
  const faults = element("div", { class: "faults" });
  const rows = fields.map((field) => row(field, inputs));
  const go = element("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
  const no = element("button", { type: "button", onclick: () => dialog.close() }, fields.length ? "Cancel" : "Go back");
  const inside = element("form", { method: "dialog", class: "fields" }, ...body, ...rows, faults, element("div", { class: "actions" }, no, go));
  const dialog = element("dialog", { class: "ask", "aria-labelledby": "ask-title" }, element("div", { class: "bar" }, element("h2", { id: "ask-title" }, title)), inside);
  return new Promise((resolve) => {
    let result = null;
    inside.addEventListener("submit", async (event) => {
      event.preventDefault();
      const values = Object.fromEntries([...inputs].map(([name, input]) => [name, input.type === "checkbox" ? input.checked : input.value.trim()]));
      go.disabled = true;
      faults.replaceChildren();
      try {
        result = (await send(values)) ?? true;
        dialog.close();
      } catch (problem) {
        faults.replaceChildren(problemNote(problem));
        go.disabled = false;
        go.focus();
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    (fields.length ? inside.querySelector("input, select, textarea") : no).focus();
  });
}

let fieldCount = 0; // for unique ids

/** Return a labelled field, and register its input under its name. */
export function row(field, inputs) {
  fieldCount += 1;
  const id = `field-${fieldCount}`, hint = `${id}-hint`;
  const common = { id, name: field.name, required: field.required ?? false, ...(field.hint ? { "aria-describedby": hint } : {}) };
  let input;
  if (field.options) {
    input = element("select", common, ...field.options.map(([value, name]) => element("option", { value, selected: value === field.value }, name)));
  } else if (field.type === "area") {
    input = element("textarea", { ...common, rows: String(field.rows ?? 4), autocomplete: "off", spellcheck: "false", placeholder: field.placeholder ?? "" });
    input.value = field.value ?? "";
  } else {
    input = element("input", { ...common, type: field.type ?? "text", autocomplete: "off", spellcheck: "false", placeholder: field.placeholder ?? "" });
    if (field.type === "checkbox") input.checked = Boolean(field.value);
    else input.value = field.value ?? "";
  }
  inputs.set(field.name, input);
  return element("div", { class: `field ${field.wide ? "wide" : ""} ${field.type === "checkbox" ? "check" : ""}`, "data-field": field.name },
    element("label", { for: id }, field.label), input, field.hint ? element("small", { id: hint }, field.hint) : null);
}
