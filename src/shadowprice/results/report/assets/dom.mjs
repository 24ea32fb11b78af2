// Elements, made so that no text is ever read as HTML.

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const SHORT = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };

/** Write out what does not show, or turns what stands beside it around: `\x1b`, `\u202e`; the twin of embed.py's. */
export function shown(text) {
  return text.replace(HIDDEN, (mark) => {
    const code = mark.codePointAt(0), digits = code.toString(16);
    return SHORT[mark] ?? (code < 256 ? `\\x${digits.padStart(2, "0")}` : code < 65536 ? `\\u${digits.padStart(4, "0")}` : `\\U${digits.padStart(8, "0")}`);
  });
}

const TOLD = new Set(["title", "aria-label", "placeholder", "aria-description"]);

/** Make an element: its tag, properties and children (strings become text, what is hidden in them written out). */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else if (value !== null && value !== false) made.setAttribute(name, TOLD.has(name) ? shown(String(value)) : value);
  }
  made.append(...children.filter((child) => child !== null).map((child) => (typeof child === "string" ? shown(child) : child)));
  return made;
}

/** Build the inside of a tooltip: a heading, and rows of (colour or null, name, value). */
export function tip(heading, rows) {
  return element("div", { class: "inner" },
    element("div", { class: "head" }, heading),
    ...rows.map(([colour, name, value]) => element("div", { class: "row" },
      colour === null ? null : element("i", { class: `c${colour}` }), element("span", {}, name), element("b", {}, value ?? ""))));
}
