// Elements, made so that no text is ever read as HTML.

/** Make an element: its tag, properties and children (strings become text). */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else if (value !== null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Build the inside of a tooltip: a heading, and rows of (colour or null, name, value). */
export function tip(heading, rows) {
  return element("div", { class: "inner" },
    element("div", { class: "head" }, heading),
    ...rows.map(([colour, name, value]) => element("div", { class: "row" },
      colour === null ? null : element("i", { class: `c${colour}` }), element("span", {}, name), element("b", {}, value ?? ""))));
}
