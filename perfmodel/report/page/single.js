// One described figure alone, that of `perfmodel plot … -o figure.html`: point at it, drag over it to see some of it
// larger, double-click to see all of it again.

import { h, hideTip, showTip } from "./dom.js";
import { cellsTable, chart, drawPanel, found, keys, ramp, ticksOf } from "./figure.js";
import { digits } from "./format.js";

const POINT = 2; // px of a point (1/72 in)
const INCH = 72 * POINT;
const LEAST = 6; // px of what is dragged over

const figure = JSON.parse(document.getElementById("document").textContent);

function number(axis, value) {
  return axis.scale === "category" ? (axis.ticks.find(([at]) => at === value)?.[1] ?? "").replaceAll("\n", " ") : digits(value / axis.factor);
}

function valued(axis, value) {
  return [axis.label && `${axis.label}:`, number(axis, value), axis.scale !== "category" && axis.unit].filter(Boolean).join(" ");
}

function tip({ x, y }, { mark, at }) {
  if (mark.mark === "bars") return [`${mark.label}: ${number(x, mark.length[at])} ${x.unit}`, number(y, mark.at[at]), mark.texts[at]].filter(Boolean);
  return [mark.texts[at] || mark.label, valued(x, mark.x[at]), valued(y, mark.y[at])].filter(Boolean);
}

function tableOf(panel, cells) {
  const { scale } = cells;
  const write = (value) => `${digits(value / scale.factor, 3)} ${scale.unit}`;
  const words = (row, column) => `${number(panel.x, column)}, ${number(panel.y, row)}: ${write(cells.values[row][column])}`;
  return h("div", {}, cellsTable(panel, cells, { caption: scale.title, words }), h("div", { class: "legend" }, scale.title, ramp(cells, write)));
}

function drawnPanel(panel, height) {
  const drawing = chart();
  const { svg, frame } = drawing;
  let [shown, drawn] = [panel, null];
  const draw = () => (drawn = drawPanel(drawing, shown, INCH * figure.width, height, POINT));
  const placeOf = (event) => {
    const box = svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const narrowed = (axis, scale, ends) => {
    if (axis.scale === "category") return axis;
    const [low, high] = ends.map(scale.invert).sort((a, b) => a - b);
    const found = { ...axis, low, high };
    return { ...found, ticks: ticksOf(found, 5, (value) => digits(value / axis.factor, 3)) };
  };
  let from = null;
  svg.addEventListener("pointerdown", (event) => (from = placeOf(event)));
  svg.addEventListener("pointerup", (event) => {
    const to = placeOf(event);
    if (from && Math.min(...from.map((it, at) => Math.abs(it - to[at]))) > LEAST) {
      const { x, y } = drawn.scales;
      shown = { ...shown, x: narrowed(shown.x, x, [from[0], to[0]]), y: narrowed(shown.y, y, [from[1], to[1]]) };
      draw();
    }
    from = null;
  });
  svg.addEventListener("dblclick", () => {
    shown = panel;
    draw();
  });
  svg.addEventListener("pointermove", (event) => {
    const hit = found(drawn, ...placeOf(event));
    if (hit) showTip(tip(shown, hit), event.clientX, event.clientY);
    else hideTip();
  });
  svg.addEventListener("pointerleave", hideTip);
  svg.setAttribute("aria-label", `${panel.y.title} over ${panel.x.title}`);
  draw();
  return frame;
}

const total = figure.panels.reduce((sum, it) => sum + it.height, 0);
const parts = figure.panels.map((panel) => {
  const cells = panel.marks.find((it) => it.mark === "cells");
  return cells ? tableOf(panel, cells) : drawnPanel(panel, (INCH * figure.height * panel.height) / total);
});
const legend = h("div", { class: "legend" }, keys(figure.panels.flatMap((it) => it.marks)));
document.getElementById("page").replaceChildren(h("main", { class: "single", style: { width: `${INCH * figure.width}px` } }, figure.title && h("h1", {}, figure.title), parts, legend, figure.notes.map((it) => h("p", { class: "note" }, it))));
document.documentElement.dataset.ready = "yes";
