// What left rows out, and what the results rest on.

import { h, plainTable } from "./dom.js";
import { plural, whole } from "./format.js";

export function leftOut(population) {
  if (!population.left_out.length) return null;
  const total = population.left_out.reduce((sum, [, count]) => sum + count, 0);
  const most = Math.max(...population.left_out.map(([, count]) => count));
  const lines = population.left_out.map(([reason, count]) => h("tr", {}, h("th", { scope: "row" }, reason), h("td", { class: "bar-cell" }, h("span", { class: "bar-track", "aria-hidden": "true" }, h("span", { class: "bar-fill quiet-fill", style: { width: `${(100 * count) / most}%` } })), h("span", {}, whole(count)))));
  return h("section", { class: "card", "aria-label": "Without an answer" }, h("header", {}, h("h2", {}, "Without an answer")), h("p", { class: "note" }, `${plural(total, population.one, population.many)} of ${whole(population.total)} by the reason.`), h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Reasons" }, h("table", { class: "reasons" }, h("caption", { class: "sr" }, "Reasons"), h("thead", { class: "sr" }, h("tr", {}, h("th", { scope: "col" }, "reason"), h("th", { scope: "col" }, population.many))), h("tbody", {}, lines))));
}

export function sources(found) {
  return h("section", { class: "card", "aria-label": "What this rests on" }, h("header", {}, h("h2", {}, "What this rests on"), h("span", { class: "soft" }, `page written by perfmodel ${found.perfmodel}`)), found.provenance.map(source));
}

function source(it) {
  return h("div", { class: "source" }, h("h3", {}, it.name), h("dl", { class: "facts wide" }, it.facts.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text)))), it.hardware.map((row) => hardware(row, it.hardware.length < 4)), it.more_hardware ? h("p", { class: "note" }, `and ${it.more_hardware} more rows of hardware`) : null);
}

function hardware(it, open) {
  const trust = it.trust.length
    ? h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `Trust in the constants of ${it.name}` }, h("table", { class: "plain trust" }, h("caption", {}, "Trust in its constants, by class of kernels"), h("thead", {}, h("tr", {}, ["class", "constants", "10–90 % band"].map((word) => h("th", { scope: "col" }, word)))), h("tbody", {}, it.trust.map(([kernel, level, band]) => h("tr", {}, h("th", { scope: "row" }, kernel), h("td", {}, h("span", { class: `level level-${level}` }, level)), h("td", {}, band || (level === "prior" ? "not known" : "as measured")))))))
    : null;
  const constants = it.constants.length
    ? h("details", { class: "behind" }, h("summary", {}, `${it.constants.length} constants with their sources`), h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `Constants of ${it.name}` }, plainTable(["constant", "value", "trust", "source"], it.constants)))
    : null;
  return h("details", { class: "hardware", open }, h("summary", {}, it.name), h("dl", { class: "facts wide" }, it.facts.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text)))), trust, constants);
}
