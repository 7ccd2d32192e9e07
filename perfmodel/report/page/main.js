// The page: load(document) shows one, and may be called again with another.

import { detail } from "./detail.js";
import { h } from "./dom.js";
import { facets, filterBar } from "./facets.js";
import { headline } from "./headline.js";
import { heatmap } from "./heatmap.js";
import { parallel } from "./parallel.js";
import { pipeline } from "./pipeline.js";
import { Population } from "./population.js";
import { scatter } from "./scatter.js";
import { sides } from "./sides.js";
import { leftOut, sources } from "./sources.js";
import { bestTable } from "./tables.js";
import { View } from "./view.js";

const page = { views: [], shown: 0, document: null, loading: 0 };
const THEMES = ["auto", "light", "dark"];

// Show a document of perfmodel.report.document; resolves when it is drawn.
export async function load(found) {
  const turn = (page.loading += 1);
  const populations = await Promise.all(found.populations.map((it) => Population.from(it)));
  if (turn !== page.loading) return; // a newer one came meanwhile
  document.title = found.title;
  page.document = found;
  page.views = populations.map((it) => new View(it, remember));
  page.shown = 0;
  const panels = page.views.map((view, at) => panel(view, at));
  const tabs = page.views.length > 1 ? tabList(panels) : null;
  const main = h("main", { id: "results", tabindex: "-1" }, tabs, panels, sources(found));
  document.getElementById("page").replaceChildren(top(found), main, foot(found));
  showTab(panels, 0);
  restore(stateOfAddress());
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  document.documentElement.dataset.ready = "yes";
  dispatchEvent(new CustomEvent("perfmodel:loaded", { detail: { title: found.title } }));
}

function top(found) {
  const common = page.views.flatMap((it) => it.population.common);
  const named = ["model", "hardware", "devices", "framework", "engine", "sequence_length", "global_batch_size", "precision"];
  const seen = new Set();
  const facts = named.map((name) => common.find((it) => it.name === name)).filter((it) => it && !seen.has(it.name) && seen.add(it.name));
  const theme = h("button", { type: "button", class: "quiet", onclick: () => setTheme(theme) });
  nameTheme(theme);
  const print = h("button", { type: "button", class: "quiet", onclick: () => globalThis.print() }, "Print");
  const rest = common.filter((it) => !named.includes(it.name) && it.name !== "fits" && it.option && it.value !== it.default);
  return h("header", { class: "top" },
    h("div", { class: "top-line" }, h("p", { class: "brand" }, "perfmodel report"), h("div", { class: "top-buttons" }, theme, print)),
    h("h1", {}, found.title),
    h("ul", { class: "given", "aria-label": "The same for all" }, [...facts, ...rest].map((it) => h("li", {}, h("span", { class: "soft" }, `${it.title} `), it.value))));
}

function foot(found) {
  return h("footer", { class: "foot" }, `Written by perfmodel ${found.perfmodel}. All that is shown is in this file: nothing is loaded, nothing is sent.`);
}

function panel(view, at) {
  const { population } = view;
  const parts = [scatter, parallel, heatmap, sides, pipeline].map((make) => make(view));
  const [trade, axes, heat, beside, passes] = parts;
  const chosen = detail(view);
  view.detail = chosen;
  const selection = population.selection || population.where ? h("p", { class: "note banner" }, [population.where && `Only what passes ${population.where}.`, population.selection && `${population.selection}.`].filter(Boolean).join(" ")) : null;
  return h("div", { class: "panel", id: `panel-${at}`, ...(page.views.length > 1 ? { role: "tabpanel", "aria-labelledby": `tab-${at}` } : {}) },
    headline(view), selection, filterBar(view), facets(view),
    h("div", { class: "columns" }, h("div", { class: "wide" }, bestTable(view), trade), chosen),
    axes, heat, beside, passes, leftOut(population));
}

function tabList(panels) {
  const tabs = page.views.map((view, at) => h("button", { type: "button", role: "tab", id: `tab-${at}`, "aria-controls": `panel-${at}`, onclick: () => showTab(panels, at, true), onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = (at + step + tabs.length) % tabs.length;
    showTab(panels, next, true);
    tabs[next].focus();
  } }, view.population.title));
  return h("div", { class: "tabs", role: "tablist", "aria-label": "Kinds of results" }, tabs);
}

function showTab(panels, number, tell = false) {
  page.shown = number;
  panels.forEach((it, at) => {
    it.hidden = at !== number;
    const tab = document.getElementById(`tab-${at}`);
    if (tab) {
      tab.setAttribute("aria-selected", String(at === number));
      tab.tabIndex = at === number ? 0 : -1;
    }
  });
  page.views[number]?.show();
  if (tell) remember();
}

// ---------------------------------------------------------------- theme

function nameTheme(button) {
  const now = document.documentElement.dataset.theme || "auto";
  button.textContent = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" }[now];
}

function setTheme(button) {
  const now = document.documentElement.dataset.theme || "auto";
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  nameTheme(button);
  redraw();
}

function redraw() {
  page.views[page.shown]?.show();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
matchMedia("print").addEventListener("change", () => page.views[page.shown]?.show(true));

// ---------------------------------------------------------------- what is filtered and chosen

// What the page shows of its document, fit for JSON: for links, and for a server.
export function state() {
  const view = page.views[page.shown];
  return view ? { tab: page.shown, ...view.state } : {};
}

// Bring back what state() returned, as far as this document has it.
export function restore(wanted) {
  if (!wanted || !page.views.length) return;
  const number = page.views[wanted.tab] ? wanted.tab : 0;
  if (number !== page.shown) document.getElementById(`tab-${number}`)?.click();
  page.views[number].restore(wanted);
}

let due = 0;

function remember() {
  clearTimeout(due);
  due = setTimeout(() => {
    const view = page.views[page.shown];
    const plain = view && !view.changed() && view.rank === view.population.rank && view.row === view.first() && !page.shown;
    const address = plain || !view ? " " : `#${encodeURIComponent(JSON.stringify(state()))}`;
    try {
      history.replaceState(null, "", address === " " ? location.pathname + location.search : address);
    } catch {
      // some browsers forbid it for files
    }
    dispatchEvent(new CustomEvent("perfmodel:changed"));
  }, 250);
}

function stateOfAddress() {
  try {
    return location.hash.length > 1 ? JSON.parse(decodeURIComponent(location.hash.slice(1))) : null;
  } catch {
    return null;
  }
}

// The view that is shown, for tests and for servers: its population, filters and chosen row.
export function current() {
  return page.views[page.shown] || null;
}

globalThis.perfmodel = { load, state, restore, current };
const embedded = document.getElementById("document").textContent;
if (embedded.trim()) await load(JSON.parse(embedded));
