// Starts the page's script: reads the data, draws charts, fills tables, opens job histories.

import { Chart, Page } from "./charts.mjs";
import { element } from "./dom.mjs";
import { Clock } from "./format.mjs";
import { KINDS } from "./kinds.mjs";
import { jobsSection, ServerTimeline, Histories, HistoryDialog } from "./histories.mjs";
import { liveTable } from "./tables.mjs";

/** Read a data block: plain JSON, or deflated JSON or bytes in base64. */
export async function read(script) {
  if (!script.dataset.deflated) return JSON.parse(script.textContent);
  const packed = Uint8Array.from(atob(script.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Response(stream);
  return script.dataset.deflated === "bytes" ? new Uint8Array(await bytes.arrayBuffer()) : bytes.json();
}

async function start() {
  const settings = await read(document.getElementById("page-data"));
  const live = element("div", { class: "sr", "aria-live": "polite" });
  document.body.append(live);
  const page = new Page(new Clock(settings.slot, settings.origin), { announce: (text) => { live.textContent = text; } });
  clockSwitch(page, settings);
  const charts = [], heats = [];
  for (const host of document.querySelectorAll("div.chart[data-chart]")) {
    const [script, bytes] = host.querySelectorAll("script");
    const description = await read(script);
    if (bytes) description.levels = await read(bytes);
    const chart = new Chart(host, description, page, { eager: false });
    charts.push(chart);
    if (description.kind === "heat") heats.push({ ...description, value: (at) => KINDS.heat.value(description, description.levels[at]) });
  }
  const block = document.getElementById("histories");
  let histories = null;
  if (block) {
    histories = new Histories(await read(block));
    const extent = histories.data.extent;
    const prices = charts.find((chart) => chart.description.prices)?.description ?? null;
    const dialog = new HistoryDialog(histories, page, prices);
    page.pick = (at) => dialog.open(at);
    const list = document.getElementById("job-list");
    if (list) jobsSection(list, histories, page, histories.data.columns, extent);
    const timeline = document.getElementById("server-timeline");
    if (timeline && histories.data.ran.job.length) {
      const one = new ServerTimeline(timeline, histories, page, heats, extent);
      page.pickServer = (server) => one.show(server, true);
    } else {
      timeline?.closest("section")?.remove();
    }
  }
  for (const box of document.querySelectorAll("div.table[data-table]")) {
    const { columns, rows, size, links } = await read(box.querySelector("script"));
    const picks = histories && links ? rows.map((row) => histories.at.get(row[links - 1]) ?? null) : null;
    liveTable(box, columns, rows, { size, page, picks });
  }
  const follow = () => {
    const [, name] = location.hash.match(/^#job=(.*)$/) ?? [];
    if (name === undefined || !histories) return;
    const job = decoded(name), at = histories.at.get(job);
    document.querySelector(".missing")?.remove();
    if (at !== undefined) page.pick(at);
    else document.querySelector("header").after(element("p", { class: "warning missing", role: "alert" },
      `This page has no history of ${job}; "shadowprice explain" prints it.`));
  };
  addEventListener("hashchange", follow);
  follow();
  document.documentElement.dataset.ready = "true";
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Add the switch between times and slots on every axis. */
function clockSwitch(page, settings) {
  const host = document.querySelector("nav");
  if (!host || !settings.slot) return;
  const button = (mode, label) => element("button", {
    type: "button", "aria-pressed": String(page.clock.mode === mode),
    onclick: (event) => {
      page.setMode(mode);
      for (const other of event.currentTarget.parentElement.children) other.setAttribute("aria-pressed", String(other === event.currentTarget));
    },
  }, label);
  host.append(element("span", { class: "clock", role: "group", "aria-label": "Axes show" }, button("time", "time"), button("slots", "slots")));
}

start().catch((error) => {
  document.body.prepend(element("p", { class: "warning", role: "alert" }, `This page could not be drawn: ${error.message}. Its tables are below.`));
  throw error;
});
