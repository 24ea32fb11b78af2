// Creates elements whose texts are never parsed as HTML.

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const SHORT = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

/** Escape invisible characters and changes of direction, such as `\x1b`, as `escape_invisible` in inline_assets.py. */
export function shown(text) {
  return text.replace(HIDDEN, (mark) => {
    const code = mark.codePointAt(0), digits = code.toString(16);
    return SHORT[mark] ?? (code < 256 ? `\\x${digits.padStart(2, "0")}` : code < 65536 ? `\\u${digits.padStart(4, "0")}` : `\\U${digits.padStart(8, "0")}`);
  });
}

const TEXT_ATTRIBUTES = new Set(["title", "aria-label", "placeholder", "aria-description"]);

/** Create an element with properties, handlers (`on...`) and children; strings become text, see `shown`. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else if (value !== null && value !== false) made.setAttribute(name, TEXT_ATTRIBUTES.has(name) ? shown(String(value)) : value);
  }
  made.append(...children.filter((child) => child !== null).map((child) => (typeof child === "string" ? shown(child) : child)));
  return made;
}

/** Create the content of a tooltip: a heading, and rows of (colour or null, name, value). */
export function tip(heading, rows) {
  return element("div", { class: "inner" },
    element("div", { class: "head" }, heading),
    ...rows.map(([colour, name, value]) => element("div", { class: "row" },
      colour === null ? null : element("i", { class: `c${colour}` }), element("span", {}, name), element("b", {}, value ?? ""))));
}
