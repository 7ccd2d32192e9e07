// The one drawer of described figures, those of perfmodel/report/plots/figure.py and those that the report's charts
// make of what passes their filters: a panel has two axes and marks, in SI units. Marks lie on a canvas, axes and
// words above it; cells are a table. A colour is "#rrggbb", or one of the page's theme: "--accent".

import { inked, readable, viridis } from "./colours.js";
import { h, s, sharpen } from "./dom.js";

export const POINT = 1.6; // px of a point (1/72 in) of the description
const SMALL = 7; // of ticks and keys [pt], as perfmodel.base.figures has it
const TEXT = 8;
const LINE = 1.25; // height of a line, of its size
const TICK = 4; // px
const FREE = 6; // px between ticks and their words

export function chart() {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const svg = s("svg", { class: "over", role: "group" });
  return { canvas, svg, frame: h("div", { class: "chart" }, canvas, svg) };
}

// Where values lie between two places of the screen.
export function scaleOf(axis, from, to) {
  const log = axis.scale === "log";
  const of = (value) => (log ? Math.log(value) : value);
  const low = of(axis.low);
  const each = (to - from) / (of(axis.high) - low || 1);
  const scale = (value) => from + (of(value) - low) * each;
  scale.invert = (place) => {
    const value = low + (place - from) / each;
    return log ? Math.exp(value) : value;
  };
  return Object.assign(scale, { ends: [from, to] });
}

// Round numbers between two ends, in shown units, as [value, words]: 1, 2 and 5 of decades, or one in some of many.
export function ticksOf({ scale, low, high, factor = 1 }, wanted, write) {
  const [first, last] = [low / factor, high / factor];
  const decades = Math.log10(last / first);
  const found = [];
  if (scale === "log" && decades >= 0.7) {
    const leads = decades > 2.3 ? [1] : [1, 2, 5];
    const every = decades > 2.3 ? Math.max(1, Math.round(decades / wanted)) : 1;
    for (let power = Math.floor(Math.log10(first)); power <= Math.ceil(Math.log10(last)); power += 1) {
      if (power % every === 0) found.push(...leads.map((it) => Number(`${it}e${power}`)).filter((it) => it >= first && it <= last));
    }
  } else {
    const rough = (last - first) / wanted;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 2.5, 5, 10].find((it) => it * power >= 0.999 * rough);
    for (let at = Math.ceil(first / step - 1e-9); at <= last / step + 1e-9; at += 1) found.push(at * step);
  }
  return found.map((it) => [it * factor, write(it * factor)]);
}

// Draw a panel; returns its scales and marks. Marks may be made when the scales are known.
export function drawPanel({ canvas, svg }, panel, width, height, point = POINT) {
  const context = sharpen(canvas, width, height);
  context.font = `${SMALL * point}px system-ui, sans-serif`;
  const box = inside(context, panel, width, height, point);
  const scales = { x: scaleOf(panel.x, box.left, box.right), y: scaleOf(panel.y, box.bottom, box.top) };
  const marks = typeof panel.marks === "function" ? panel.marks(scales) : panel.marks;
  const edge = 3 * point;
  context.beginPath();
  context.rect(box.left - edge, box.top - edge, box.right - box.left + 2 * edge, box.bottom - box.top + 2 * edge);
  context.clip();
  for (const mark of marks) {
    context.globalAlpha = mark.alpha ?? 1;
    DRAW[mark.mark]?.(context, mark, scales, point);
  }
  for (const [name, value] of [["viewBox", `0 0 ${width} ${height}`], ["width", width], ["height", height]]) svg.setAttribute(name, value);
  svg.replaceChildren(axes(panel, scales, box, point), ...marks.filter((it) => it.mark === "text").map((it) => words(it, scales, point)));
  return { scales, marks };
}

// Where the marks of a panel lie, beside the words of its axes.
function inside(context, { x, y }, width, height, point) {
  const lines = y.ticks.flatMap(([, text]) => text.split("\n"));
  const wide = (text) => context.measureText(text).width;
  const left = Math.min(0.6 * width, Math.max(0, ...lines.map(wide)) + TICK + FREE);
  const below = x.ticks.some(([, text]) => text) ? Math.max(...x.ticks.map(([, text]) => text.split("\n").length)) * LINE * SMALL : 0;
  const right = width - Math.max(4 * point, wide(x.ticks.at(-1)?.[1] ?? "") / 2 + 2);
  return { left, right, top: (y.title ? 2 * TEXT : 4) * point, bottom: height - TICK - FREE - (below + (x.title ? LINE * TEXT : 0)) * point };
}

function axes({ x, y }, scales, box, point) {
  const small = { "font-size": `${SMALL * point}px` };
  const line = (x1, y1, x2, y2) => s("line", { x1, y1, x2, y2 });
  const within = (scale, [at]) => scale(at) >= Math.min(...scale.ends) - 0.5 && scale(at) <= Math.max(...scale.ends) + 0.5;
  const group = s("g", { class: "axis", "aria-hidden": "true" }, line(box.left, box.bottom, box.right, box.bottom), line(box.left, box.top, box.left, box.bottom));
  for (const [at, text] of x.ticks.filter((it) => within(scales.x, it))) {
    const place = scales.x(at);
    if (x.scale !== "category") group.append(line(place, box.bottom, place, box.bottom + TICK));
    group.append(s("text", { "text-anchor": "middle", style: small }, lined(text, place, box.bottom + FREE + SMALL * point, SMALL * point)));
  }
  for (const [at, text] of y.ticks.filter((it) => within(scales.y, it))) {
    const place = scales.y(at);
    if (y.scale !== "category") group.append(line(box.left - TICK, place, box.left, place));
    const first = place + (0.35 - 0.5 * LINE * (text.split("\n").length - 1)) * SMALL * point;
    group.append(s("text", { "text-anchor": "end", style: small }, lined(text, box.left - FREE, first, SMALL * point)));
  }
  const large = { "font-size": `${TEXT * point}px` };
  if (x.title) group.append(s("text", { class: "axis-title", "text-anchor": "end", x: box.right, y: box.bottom + FREE + (SMALL + LINE * TEXT) * point, style: large }, x.title));
  if (y.title) group.append(s("text", { class: "axis-title", x: 2, y: TEXT * point, style: large }, y.title));
  return group;
}

function lined(text, x, y, size) {
  return text.split("\n").map((line, at) => s("tspan", { x, y: y + at * LINE * size }, line));
}

// Words beside a point of the data, moved by some points.
function words({ x, y, text, colour, align = "left", valign = "center", dx = 0, dy = 0, angle = 0, size = SMALL, halo = true }, scales, point) {
  const [left, top] = [scales.x(x) + dx * point, scales.y(y) - dy * point];
  const more = LINE * (text.split("\n").length - 1);
  const first = { top: 0.85, center: 0.35 - more / 2, bottom: -0.2 - more }[valign] * size * point;
  return s("text", { class: halo ? "words halo" : "words", "text-anchor": { left: "start", center: "middle", right: "end" }[align], fill: inked(colour), transform: angle ? `rotate(${-angle} ${left} ${top})` : null, style: { "font-size": `${size * point}px` } }, lined(text, left, top + first, size * point));
}

// ---------------------------------------------------------------- marks

const SHAPES = {
  square: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  diamond: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
  triangle: [[0, -1.1], [1, 0.9], [-1, 0.9]],
  down: [[0, 1.1], [1, -0.9], [-1, -0.9]],
  cross: [[-1, -0.5], [-0.5, -1], [0, -0.5], [0.5, -1], [1, -0.5], [0.5, 0], [1, 0.5], [0.5, 1], [0, 0.5], [-0.5, 1], [-1, 0.5], [-0.5, 0]],
};

const DRAW = {
  line(context, { x, y, colour, width = 1, dashed }, scales, point) {
    context.strokeStyle = inked(colour);
    context.lineWidth = width * point;
    context.setLineDash(dashed ? [3 * point, 2 * point] : []);
    context.beginPath();
    for (let at = 0; at < x.length; at += 1) context.lineTo(scales.x(x[at]), scales.y(y[at]));
    context.stroke();
    context.setLineDash([]);
  },

  band(context, { x, low, high, colour }, scales) {
    context.fillStyle = inked(colour);
    context.beginPath();
    for (let at = 0; at < x.length; at += 1) context.lineTo(scales.x(x[at]), scales.y(high[at]));
    for (let at = x.length - 1; at >= 0; at -= 1) context.lineTo(scales.x(x[at]), scales.y(low[at]));
    context.fill();
  },

  // Of all numbers, or of some rows of them.
  points(context, { x, y, rows = null, colour, size = 4, marker = "circle", hollow, low = [], high = [] }, scales, point) {
    context.fillStyle = inked(hollow ? "--card" : colour);
    context.strokeStyle = inked(colour);
    context.lineWidth = 0.8 * point;
    for (let i = 0; i < (rows || x).length; i += 1) {
      const at = rows ? rows[i] : i;
      const [left, top, half] = [scales.x(x[at]), scales.y(y[at]), ((size[at] ?? size) * point) / 2];
      if (low.length) context.strokeRect(left, scales.y(high[at]), 0, scales.y(low[at]) - scales.y(high[at]));
      if (half < 2 && !hollow) {
        context.fillRect(left - half, top - half, 2 * half, 2 * half);
        continue;
      }
      context.beginPath();
      if (marker === "circle") context.arc(left, top, half, 0, 7);
      else SHAPES[marker].forEach(([a, b]) => context.lineTo(left + a * half, top + b * half));
      context.closePath();
      context.fill();
      if (hollow) context.stroke();
    }
  },

  bars(context, mark, scales, point) {
    const { at, start, length, colour, texts = [], height = 0.68, edge = true, hatch } = mark;
    const [first, last] = scales.x.ends;
    const size = SMALL * point;
    const paint = inked(colour);
    Object.assign(context, { strokeStyle: inked("--card"), lineWidth: 0.4 * point, textAlign: "center", textBaseline: "middle" });
    for (let i = 0; i < at.length; i += 1) {
      const ends = [scales.x(start[i]), scales.x(start[i] + length[i])];
      const [left, right] = [Math.max(first, Math.min(...ends)), Math.min(last, Math.max(...ends))];
      if (right < first || left > last) continue;
      const [top, high] = [scales.y(at[i]) - Math.abs(scales.y(height) - scales.y(0)) / 2, Math.abs(scales.y(height) - scales.y(0))];
      context.fillStyle = paint;
      context.fillRect(left, top, Math.max(0.6, right - left), high);
      if (hatch) hatched(context, left, top, right - left, high, point);
      if (edge && right - left > 3) context.strokeRect(left, top, right - left, high);
      const text = String(texts[i] ?? "");
      if (!text || high < size || context.measureText(text).width > right - left) continue;
      context.fillStyle = context.globalAlpha < 0.75 ? inked("--ink") : readable(paint);
      context.fillText(text, (left + right) / 2, top + high / 2);
    }
  },

  // Squares of the screen itself: shares from 0 to 1, column by column; 0 for nothing.
  pixels(context, { shares, lines, size, colour }) {
    for (let at = 0; at < shares.length; at += 1) {
      if (!shares[at]) continue;
      context.fillStyle = colour(shares[at]);
      context.fillRect(Math.floor(at / lines) * size, (at % lines) * size, size, size);
    }
  },
};

function hatched(context, left, top, wide, high, point) {
  context.save();
  context.beginPath();
  context.rect(left, top, wide, high);
  context.clip();
  context.lineWidth = 0.6 * point;
  context.beginPath();
  for (let x = left - high; x < left + wide; x += 2.5 * point) {
    context.moveTo(x, top + high);
    context.lineTo(x + high, top);
  }
  context.stroke();
  context.restore();
}

// ---------------------------------------------------------------- pointing, keys

// The point nearest to a place of the screen, or the bar on it, as { mark, at }; null where there is none.
export function found({ scales, marks }, left, top, reach = 24) {
  const [low, high] = [scales.x.invert(left - reach), scales.x.invert(left + reach)];
  const [under, over] = [scales.y.invert(top + reach), scales.y.invert(top - reach)].sort((a, b) => a - b);
  let [best, least] = [null, reach * reach];
  for (const mark of marks.filter((it) => it.mark === "points")) {
    const { rows = null } = mark;
    for (let i = 0; i < (rows || mark.x).length; i += 1) {
      const at = rows ? rows[i] : i;
      const [x, y] = [mark.x[at], mark.y[at]];
      if (x < low || x > high || y < under || y > over) continue;
      const distance = (scales.x(x) - left) ** 2 + (scales.y(y) - top) ** 2;
      if (distance < least) [best, least] = [{ mark, at }, distance];
    }
  }
  if (best) return best;
  const [x, y] = [scales.x.invert(left), scales.y.invert(top)];
  for (const mark of marks.filter((it) => it.mark === "bars").reverse()) {
    for (let at = 0; at < mark.at.length; at += 1) {
      const ends = [mark.start[at], mark.start[at] + mark.length[at]].sort((a, b) => a - b);
      if (Math.abs(mark.at[at] - y) <= (mark.height ?? 0.68) / 2 && x >= ends[0] && x <= ends[1]) return { mark, at };
    }
  }
  return null;
}

// A key for every label of marks that are not named beside them.
export function keys(marks) {
  const labelled = new Map();
  for (const mark of marks) {
    const label = mark.mark === "cells" ? mark.hatched_label : mark.label;
    if (label && mark.keyed !== false && !labelled.has(label)) labelled.set(label, mark);
  }
  return [...labelled].map(([label, mark]) => h("span", { class: "key" }, sample(mark), label));
}

function sample({ mark, colour, dashed, hatch }) {
  const background = colour && inked(colour);
  if (mark === "line") return h("span", { class: "key-line", style: { "border-top": `2px ${dashed ? "dashed" : "solid"} ${background}` } });
  if (mark === "points") return h("span", { class: "key-dot", style: { background } });
  return h("span", { class: mark === "cells" ? "key-dot square hole" : "key-dot square", style: { background: hatch ? `repeating-linear-gradient(135deg, ${background} 0 3px, transparent 3px 4px)` : background } });
}

// ---------------------------------------------------------------- cells

// Cells as a table. words(row, column) say what stands in one; press(row, column) makes them buttons.
export function cellsTable({ x, y }, cells, { caption, words: said, press = null, colour = viridis }) {
  const { scale, reverse } = cells;
  const place = scale.high > scale.low ? scaleOf(scale, reverse ? 1 : 0, reverse ? 0 : 1) : () => 1;
  const rows = y.ticks.map((_, row) => row);
  if (y.low < y.high) rows.reverse();
  let first = true;
  const cell = (value, row, column) => {
    const text = cells.texts[row][column];
    if (!Number.isFinite(value)) return h("td", { class: text ? "" : "hole" }, text || h("span", { class: "sr" }, "none"));
    const paint = colour(place(value));
    const about = { class: "cell", title: said(row, column), style: { background: paint, color: readable(paint) } };
    if (!press) return h("td", {}, h("span", about, text));
    const button = h("button", { ...about, type: "button", tabindex: first ? "0" : "-1", "aria-label": about.title, onclick: () => press(row, column), onkeydown: moved }, text);
    first = false;
    return h("td", {}, button);
  };
  const corner = h("th", { class: "corner" }, h("span", {}, `${y.title} ↓`), h("span", {}, `${x.title} →`));
  return h("table", { class: "heat", style: { "max-width": `${110 * x.ticks.length + 120}px` } },
    h("caption", { class: "sr" }, caption),
    h("thead", {}, h("tr", {}, corner, x.ticks.map(([, text]) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, y.ticks[row][1]), x.ticks.map((_, column) => cell(cells.values[row][column], row, column))))));
}

// The colours of cells, from the lowest number to the highest.
export function ramp({ scale, reverse }, write, colour = viridis) {
  if (!(scale.high > scale.low)) return [];
  const stops = Array.from({ length: 9 }, (_, at) => colour(reverse ? 1 - at / 8 : at / 8)).join(", ");
  const [low, high] = [write(scale.low), write(scale.high)];
  return [h("span", {}, low), h("span", { class: "ramp", role: "img", "aria-label": `Colours from ${low} to ${high}`, style: { background: `linear-gradient(90deg, ${stops})` } }), h("span", {}, high)];
}

// Arrow keys go to the next cell that is a button.
function moved(event) {
  const cell = event.currentTarget.parentElement;
  const at = cell.cellIndex;
  const steps = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling", ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" };
  const step = steps[event.key];
  if (!step) return;
  const across = event.key === "ArrowRight" || event.key === "ArrowLeft";
  let [it, next] = [across ? cell : cell.parentElement, null];
  while (!next && (it = it[step])) next = (across ? it : it.children[at])?.querySelector("button");
  if (!next) return;
  event.preventDefault();
  event.currentTarget.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
