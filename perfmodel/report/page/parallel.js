// Parallel coordinates: every axis one column, bundles of rows between neighbours, ranges to filter.

import { binned, countsOfPairs } from "./bins.js";
import { inked } from "./colours.js";
import { behind, h, plainTable, s, sharpen } from "./dom.js";
import { whole } from "./format.js";

const MOST_AXES = innerWidth < 640 ? 10 : Math.max(6, Math.min(14, Math.floor(innerWidth / 100)));
const MOST_LABELS = 40;
const BINS = 40;
const BEST = 24;
const STACKED = 640; // px: narrower frames have their axes across

export function parallel(view) {
  const { population, filters } = view;
  const possible = population.axes.map((name) => population.get(name)).filter((it) => it && (it.isChoice ? it.labels.length <= MOST_LABELS && it.name !== "fits" : it.isDrawn));
  if (possible.length < 2) return null;
  const figures = possible.filter((it) => !it.isChoice);
  const choices = possible.filter((it) => it.isChoice);
  const shown = new Set([...choices.slice(0, MOST_AXES - figures.length), ...figures].map((it) => it.name));
  const [canvas, top] = [h("canvas", { "aria-hidden": "true" }), h("canvas", { "aria-hidden": "true", class: "over" })];
  const svg = s("svg", { class: "over", role: "group", "aria-label": "Axes of parallel coordinates; every end is a slider" });
  const frame = h("div", { class: "chart" }, canvas, top, svg);
  const table = behind("Rows by value of every axis as a table", countTable);
  const note = h("p", { class: "note" });
  let [axes, all, size] = [[], new Map(), null];
  const extents = new Map();

  const axesOf = () => possible.filter((it) => shown.has(it.name));

  function layout() {
    const columns = axesOf();
    const width = Math.max(260, frame.clientWidth);
    const stacked = width < STACKED;
    const height = stacked ? columns.length * 58 + 30 : 394;
    const [start, end] = stacked ? [16, width - 16] : [height - 30, 58];
    axes = columns.map((column, at) => {
      const bins = column.isChoice ? binned(column) : binned(column, BINS, extentOf(column));
      const across = stacked ? 34 + at * 58 : columns.length === 1 ? width / 2 : 58 + (at * (width - 116)) / (columns.length - 1);
      const place = (share) => start + (end - start) * share;
      const of = (code) => place(column.isChoice ? (code + 0.5) / bins.count : (code + 0.5) / bins.count);
      return { column, bins, across, place, of };
    });
    return { width, height, stacked };
  }

  // Axes reach as far as what fits does: one strategy beyond all memory would squeeze the others.
  function extentOf(column) {
    if (!extents.has(column.name)) extents.set(column.name, view.usualExtent(column));
    return extents.get(column.name);
  }

  function pairs(rows, count) {
    return axes.slice(1).map((next, at) => countsOfPairs(axes[at].bins, next.bins, rows, count));
  }

  function draw() {
    size = layout();
    const context = sharpen(canvas, size.width, size.height);
    const key = axes.map((it) => it.column.name).join();
    if (!all.has(key)) all = new Map([[key, pairs(null, population.rows)]]);
    bundles(context, all.get(key), inked("--faint"), 0.5);
    if (filters.count < population.rows) bundles(context, pairs(filters.rows, filters.count), inked("--accent"), 0.75);
    else bundles(context, all.get(key), inked("--accent"), 0.75);
    drawAxes();
    drawThreads();
    table.refresh();
  }

  // Single rows lie on a canvas of their own: choosing another one leaves the bundles alone.
  function drawThreads() {
    if (!size) return;
    const context = sharpen(top, size.width, size.height);
    const rank = population.get(view.rank);
    const best = filters.best(rank, BEST).reverse();
    best.forEach((row, at) => thread(context, row, inked("--strong"), 0.15 + (0.5 * at) / BEST, 1.3));
    if (view.row !== null) thread(context, view.row, inked("--ink"), 1, 2.4);
    note.textContent = `Bundles are ${population.many} that pass, grey ones all; the first ${best.length} by ${rank.title} are single lines${view.row === null ? "" : ", the chosen one the darkest"}. Drag along an axis, or move its ends with the arrow keys, to filter; double-click frees it.`;
  }

  function point(axis, at) {
    return size.stacked ? [at, axis.across] : [axis.across, at];
  }

  function curve(context, [x0, y0], [x1, y1]) {
    context.moveTo(x0, y0);
    if (size.stacked) context.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1);
    else context.bezierCurveTo((x0 + x1) / 2, y0, (x0 + x1) / 2, y1, x1, y1);
  }

  function bundles(context, found, colour, strength) {
    context.strokeStyle = colour;
    found.forEach((counts, at) => {
      const [a, b] = [axes[at], axes[at + 1]];
      let most = 1;
      for (const it of counts) if (it > most) most = it;
      const of = 1 / Math.log1p(most);
      const levels = 6; // strokes of one strength are drawn together
      const paths = Array.from({ length: levels }, () => []);
      for (let i = 0; i < a.bins.count; i += 1) {
        for (let j = 0; j < b.bins.count; j += 1) {
          const count = counts[i * b.bins.count + j];
          if (count) paths[Math.min(levels - 1, Math.floor(Math.log1p(count) * of * levels))].push([i, j]);
        }
      }
      paths.forEach((lines, level) => {
        if (!lines.length) return;
        context.globalAlpha = strength * (0.06 + 0.34 * ((level + 1) / levels) ** 2);
        context.lineWidth = 0.8 + 3 * ((level + 1) / levels) ** 2;
        context.beginPath();
        for (const [i, j] of lines) curve(context, point(a, a.of(i)), point(b, b.of(j)));
        context.stroke();
      });
    });
    context.globalAlpha = 1;
  }

  function thread(context, row, colour, alpha, width) {
    context.strokeStyle = colour;
    context.globalAlpha = alpha;
    context.lineWidth = width;
    context.beginPath();
    axes.slice(1).forEach((next, at) => curve(context, point(axes[at], axes[at].of(axes[at].bins.codes[row])), point(next, next.of(next.bins.codes[row]))));
    context.stroke();
    context.globalAlpha = 1;
  }

  // The span of an axis that passes, in bins: first and last, both included.
  function span(axis) {
    const wanted = filters.active.get(axis.column.name);
    if (!wanted) return [0, axis.bins.count - 1];
    if (axis.column.isChoice) return [Math.min(...wanted.allowed), Math.max(...wanted.allowed)];
    const low = wanted.low === -Infinity ? 0 : axis.bins.at(wanted.low * (1 + 1e-9));
    const high = wanted.high === Infinity ? axis.bins.count - 1 : axis.bins.at(wanted.high * (1 - 1e-9));
    return [low, Math.max(low, high)];
  }

  function setSpan(axis, low, high) {
    const { column, bins } = axis;
    const [first, last] = [Math.max(0, Math.min(low, high)), Math.min(bins.count - 1, Math.max(low, high))];
    if (first === 0 && last === bins.count - 1) filters.set(column.name, null);
    else if (column.isChoice) filters.set(column.name, { allowed: new Set(Array.from({ length: last - first + 1 }, (_, at) => first + at)) });
    else filters.set(column.name, { low: first ? bins.edge(first) : -Infinity, high: last < bins.count - 1 ? bins.edge(last + 1) : Infinity });
  }

  function drawAxes() {
    const { width, height, stacked } = size;
    const held = svg.contains(document.activeElement) ? document.activeElement.id : null;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.replaceChildren(...axes.map((axis, at) => drawAxis(axis, at, stacked)));
    if (held) document.getElementById(held)?.focus();
  }

  function drawAxis(axis, number, stacked) {
    const { column, bins } = axis;
    const [from, to] = [axis.place(0), axis.place(1)];
    const group = s("g", { class: "parallel-axis" });
    const at = (value) => (stacked ? [value, axis.across] : [axis.across, value]);
    const [[x1, y1], [x2, y2]] = [at(from), at(to)];
    const title = stacked
      ? s("text", { class: "axis-name", x: 16, y: axis.across - 18 }, column.title)
      : s("text", { class: "axis-name", x: axis.across, y: 12 + 15 * ((number + 1) % titleLines()), "text-anchor": number === 0 ? "start" : number === axes.length - 1 ? "end" : "middle", dx: number === 0 ? -30 : number === axes.length - 1 ? 30 : 0 }, column.short || column.title, s("title", {}, column.about || column.title));
    const [low, high] = span(axis);
    const edge = (code) => axis.place(code / bins.count);
    const [[bx1, by1], [bx2, by2]] = [at(edge(low)), at(edge(high + 1))];
    const filtered = filters.active.has(column.name);
    const area = s("line", { x1, y1, x2, y2, class: "axis-area" });
    group.append(title, s("line", { x1, y1, x2, y2, class: "axis-line" }), s("line", { x1: bx1, y1: by1, x2: bx2, y2: by2, class: filtered ? "axis-span on" : "axis-span" }), area);
    labelsOf(axis, stacked).forEach(([code, label]) => {
      const place = axis.of(code);
      const [x, y] = at(place);
      const wanted = filters.active.get(column.name);
      const off = wanted && column.isChoice && !wanted.allowed.has(code);
      group.append(s("text", stacked ? { class: off ? "axis-label off" : "axis-label", x, y: y + 16, "text-anchor": "middle" } : { class: off ? "axis-label off" : "axis-label", x: x + 7, y: y + 3.5 }, label));
    });
    const value = (end) => (column.isChoice ? column.labels[end ? high : low] : column.written(bins.edge(end ? high + 1 : low), 3));
    [0, 1].forEach((end) => {
      const [x, y] = at(edge(end ? high + 1 : low));
      const handle = s("rect", { id: `axis-${population.kind}-${number}-${end}`, class: "handle", x: x - (stacked ? 4 : 8), y: y - (stacked ? 8 : 4), width: stacked ? 8 : 16, height: stacked ? 16 : 8, rx: 3, tabindex: "0", role: "slider", "aria-label": `${column.title}, ${end ? "to" : "from"}`, "aria-orientation": stacked ? "horizontal" : "vertical", "aria-valuemin": "0", "aria-valuemax": String(bins.count - 1), "aria-valuenow": String(end ? high : low), "aria-valuetext": value(end) });
      handle.addEventListener("keydown", (event) => {
        const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 5, PageDown: -5, Home: -bins.count, End: bins.count }[event.key];
        if (by === undefined) return;
        event.preventDefault();
        const [first, last] = span(axis);
        if (end) setSpan(axis, first, Math.max(first, Math.min(bins.count - 1, last + by)));
        else setSpan(axis, Math.min(last, Math.max(0, first + by)), last);
      });
      group.append(handle);
    });
    group.addEventListener("pointerdown", (event) => begin(event, axis, stacked));
    group.addEventListener("dblclick", () => filters.set(column.name, null));
    return group;
  }

  // Titles of neighbours stand on lines of their own where they would meet.
  function titleLines() {
    return axes.length > 1 && axes[1].across - axes[0].across < 78 ? 3 : 2;
  }

  function labelsOf(axis, stacked) {
    const { column, bins } = axis;
    const length = Math.abs(axis.place(1) - axis.place(0));
    if (!column.isChoice) {
      const ends = [0, Math.floor(bins.count / 2), bins.count - 1];
      const values = [bins.edge(0), bins.edge(bins.count / 2), bins.edge(bins.count)];
      const beyond = [column.extent.low < values[0] * (1 - 1e-6) ? "≤ " : "", "", column.extent.high > values[2] * (1 + 1e-6) ? "≥ " : ""];
      return ends.map((code, at) => [code, beyond[at] + column.written(values[at], 3)]);
    }
    const room = stacked ? Math.max(...column.labels.map((it) => it.length)) * 6.5 + 6 : 13;
    const each = Math.ceil((room * column.labels.length) / length);
    return column.labels.map((label, code) => [code, label.length > 14 && !stacked ? `${label.slice(0, 12)}…` : label]).filter(([code]) => code % each === 0);
  }

  function begin(event, axis, stacked) {
    if (event.button) return;
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    const codeAt = (it) => {
      const place = stacked ? it.clientX - box.left : it.clientY - box.top;
      const share = (place - axis.place(0)) / (axis.place(1) - axis.place(0));
      return Math.max(0, Math.min(axis.bins.count - 1, Math.floor(share * axis.bins.count)));
    };
    const from = codeAt(event);
    const [low, high] = span(axis);
    // A handle moves its end; elsewhere a new range begins.
    const handle = event.target.classList.contains("handle") ? Number(event.target.id.at(-1)) : null;
    const fixed = handle === null ? from : handle ? low : high;
    let moved = false;
    const move = (it) => {
      const code = codeAt(it);
      if (!moved && code === from) return;
      moved = true;
      setSpan(axis, fixed, code);
    };
    const end = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      removeEventListener("pointercancel", end);
      if (!moved && handle === null && axis.column.isChoice) setSpan(axis, from, from);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
    addEventListener("pointercancel", end);
  }

  function countTable() {
    const rows = [];
    for (const column of axesOf().filter((it) => it.isChoice)) {
      const counts = filters.countsOf(column.name);
      column.labels.forEach((label, code) => rows.push([column.title, label, whole(counts[code])]));
    }
    return plainTable(["axis", "value", population.many], rows);
  }

  const boxes = possible.map((column) => {
    const box = h("input", { type: "checkbox", checked: shown.has(column.name), onchange: () => {
      if (box.checked) shown.add(column.name);
      else if (shown.size > 2) shown.delete(column.name);
      else box.checked = true;
      draw();
    } });
    return h("label", { class: "tick" }, box, column.title);
  });
  const picker = h("details", { class: "behind" }, h("summary", {}, "Axes"), h("fieldset", {}, h("legend", { class: "sr" }, "Axes that are shown"), boxes));
  view.onShow(draw, frame);
  filters.onChange(() => view.later(draw));
  view.onSelect(() => view.later(drawThreads));
  view.onRank(() => view.later(drawThreads));
  return h("section", { class: "card", "aria-label": "Parallel coordinates" }, h("header", {}, h("h2", {}, "Every choice at once")), frame, note, picker, table.node);
}
