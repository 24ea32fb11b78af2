// Tables that can be filtered, sorted and paged.

import { element } from "./dom.mjs";
import { number } from "./format.mjs";

const SIZES = [10, 20, 50, 200];

/**
 * Turn a box into a table.
 *
 * `columns` are {heading, numeric, minor, slot, link, long}: minor columns are omitted on phones, a slot has its time
 * as a tooltip, and a link column names a job. `rows` are arrays of cells. `picks` has the position of each row's job
 * in the page's histories, or null. `onshow` is called with the positions of the shown rows. `words` are the texts
 * that the filter searches, by default the cells.
 */
export function liveTable(box, columns, rows, { size = 20, page = null, picks = null, onshow = null, words = null } = {}) {
  const text = words ?? rows.map((row) => row.filter((cell) => cell !== null).join(" ").toLowerCase());
  let order = rows.map((_, at) => at), kept = order, at = 0, column = -1, sign = 1;
  const body = element("tbody");
  const count = element("span", { class: "count", role: "status" });
  const filter = element("input", { type: "search", placeholder: "Filter", "aria-label": "Filter rows", oninput: () => select() });
  const turn = (label, step) => element("button", { type: "button", onclick: () => { at += step; draw(); } }, label);
  const back = turn("Previous", -1), next = turn("Next", 1), where = element("span");
  const sizes = element("select", { "aria-label": "Rows at once", onchange: () => { size = Number(sizes.value); at = 0; draw(); } },
    ...[...new Set([...SIZES, size])].sort((a, b) => a - b).map((each) => element("option", { value: String(each), selected: each === size }, `${each} rows`)));
  const heads = columns.map((one, position) => element("th", { class: classes(one), scope: "col" },
    element("button", { type: "button", onclick: () => sort(position) }, one.heading)));
  const tools = element("div", { class: "tools" }, filter, count, element("span", { class: "pager" }, sizes, back, where, next));
  tools.hidden = rows.length <= Math.min(size, 10);
  box.classList.add("ready");
  box.replaceChildren(tools, element("div", { class: "scroll", tabindex: "0" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body)));

  function cell(one, value, row) {
    const shown = value === null || value === undefined ? "" : one.numeric ? number(value) : String(value);
    const made = element("td", { class: classes(one) });
    if (one.link && picks && picks[row] !== null && page) {
      made.append(element("button", { type: "button", class: "job", title: shown, onclick: () => page.pick(picks[row]) }, shown));
    } else if (one.long && shown.length > 60) {
      made.append(element("div", { class: "clamp", tabindex: "0", title: "Click to unfold", onclick: unfold, onkeydown: unfold }, shown));
    } else {
      made.textContent = shown;
      if (one.slot && page && shown) made.title = page.clock.time(value);
      else if (shown.length > 24) made.title = shown;
    }
    return made;
  }

  function draw() {
    const pages = Math.max(1, Math.ceil(kept.length / size));
    at = Math.min(Math.max(at, 0), pages - 1);
    const visible = kept.slice(at * size, (at + 1) * size);
    body.replaceChildren(...visible.map((row) => element("tr", {}, ...rows[row].map((value, position) => cell(columns[position], value, row)))));
    count.textContent = `${kept.length.toLocaleString("en")} ${kept.length === 1 ? "row" : "rows"}`;
    where.textContent = `${at + 1} of ${pages}`;
    back.disabled = at === 0;
    next.disabled = at === pages - 1;
    for (const part of [back, next, where]) part.hidden = pages === 1;
    onshow?.(visible);
  }

  function select() {
    const wanted = filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    kept = wanted.length ? order.filter((row) => wanted.every((word) => text[row].includes(word))) : order;
    at = 0;
    draw();
  }

  function sort(position) {
    sign = column === position ? -sign : 1;
    column = position;
    heads.forEach((head, each) => head.setAttribute("aria-sort", each !== column ? "none" : sign > 0 ? "ascending" : "descending"));
    const { numeric } = columns[position];
    order = rows.map((_, row) => row).sort((a, b) => {
      const one = rows[a][position], two = rows[b][position];
      if (one === two) return a - b;
      if (one === null) return 1;
      if (two === null) return -1;
      return sign * (numeric ? one - two : String(one).localeCompare(String(two), "en", { numeric: true }));
    });
    select();
  }

  draw();
  return { filter(words) { filter.value = words; select(); } };
}

function unfold(event) {
  if (event.type === "click" || event.key === "Enter") event.currentTarget.classList.toggle("clamp");
}

function classes(column) {
  return [column.numeric ? "num" : "", column.minor ? "minor" : "", column.long ? "long" : ""].filter(Boolean).join(" ");
}
