// Two figures against each other: points or their density, and what no other row beats.

import { binned, countsInCells } from "./bins.js";
import { density, GROUPS } from "./colours.js";
import { behind, choose, h, hideTip, plainTable, s, showTip } from "./dom.js";
import { chart, drawPanel, found, keys, ticksOf } from "./figure.js";
import { UNITS, whole } from "./format.js";
import { frontOf } from "./front.js";

const MOST_POINTS = 40_000;
const FINE = 1536; // bins of a figure from which cells of any size are made
const CELL = 4; // px
const DECADES = 60; // a wider range than this factor is drawn on a logarithmic scale
const REACH = 24; // px around the pointer
const BAND = 1.1; // around what is equal to its measurement

export function scatter(view) {
  const { population, filters } = view;
  const figures = population.figures;
  if (figures.length < 2) return null;
  const compares = population.kind === "comparison";
  const [firstX, firstY] = population.trades[0] || [figures[1].name, figures[0].name];
  const state = { x: firstX, y: firstY, group: grouping(population) };
  const logs = new Map();
  const options = figures.map((it) => ({ value: it.name, title: it.title }));
  const groups = population.choices.filter((it) => it.labels.length <= GROUPS.length && it.name !== "fits");
  const drawing = chart();
  const { frame, svg } = drawing;
  const legend = h("div", { class: "legend" });
  const note = h("p", { class: "note" });
  const controls = h("div", { class: "controls" });
  const table = behind(population.judged ? "The front as a table" : `The first ${population.many} as a table`, frontTable);
  let [front, drawn] = [[], null];

  const columns = () => [population.get(state.x), population.get(state.y)];
  const square = () => compares && state.x === "measured" && state.y === "projected";

  function draw() {
    const [x, y] = columns();
    const width = Math.max(260, frame.clientWidth);
    const height = Math.round(Math.min(460, Math.max(300, width * 0.56)));
    const points = filters.count <= MOST_POINTS;
    front = population.judged ? frontOf(filters, x, y) : [];
    const [across, up] = axes(x, y, width);
    const over = [...limits(x, across, up), ...(square() ? diagonal(across) : []), ...frontLine(x, y)];
    const below = (scales) => (points ? clouds(x, y) : [cells(x, y, scales, width, height)]);
    drawn = drawPanel(drawing, { x: across, y: up, marks: (scales) => [...below(scales), ...over] }, width, height);
    svg.setAttribute("aria-label", `${y.title} against ${x.title}`);
    listFront(x, y);
    legend.replaceChildren(...keys([...over, ...drawn.marks]));
    const shown = points ? `${whole(filters.count)} points, one for each ${population.one}.` : `${whole(filters.count)} ${population.many} as their density: the deeper the colour, the more in one place.`;
    const levels = population.isExact ? "" : " Numbers of most are drawn in levels; the best and the front are exact.";
    note.textContent = shown + levels;
    table.refresh();
  }

  // ---------------------------------------------------------------- what is drawn

  function axes(x, y, width) {
    const found = [axisOf(x, "more →", "← less"), axisOf(y, "more ↑", "less ↓")];
    if (square()) {
      const ends = { low: Math.min(...found.map((it) => it.low)), high: Math.max(...found.map((it) => it.high)) };
      found.forEach((it) => Object.assign(it, ends));
    }
    [x, y].forEach((column, at) => {
      const wanted = at ? 6 : width < 480 ? 4 : 7;
      found[at].ticks = ticksOf(found[at], wanted, (value) => column.written(value, 3).replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, ""));
    });
    return found;
  }

  // The axis of what passes; whether it is logarithmic stays as it was first.
  function axisOf(column, more, less) {
    const { low, high, positive } = filters.extentOf(column);
    if (!logs.has(column.name)) logs.set(column.name, low > 0 && (compares ? column.name !== "error" : high / low > DECADES));
    const about = { title: column.title + (population.judged ? `, ${column.larger ? more : less} is better` : ""), factor: UNITS[column.form] || 1 };
    if (logs.get(column.name) && positive < Infinity) return { ...about, scale: "log", low: positive / 1.05, high: high * 1.05 };
    const pad = (high - low) * 0.03 || Math.abs(high) * 0.05 || 1;
    return { ...about, scale: "linear", low: Math.max(low - pad, low >= 0 ? 0 : -Infinity), high: high + pad };
  }

  // A mark of points for every group, each with its rows.
  function clouds(x, y) {
    const group = state.group && population.get(state.group);
    const size = filters.count > 4000 ? 1.3 : filters.count > 600 ? 2 : filters.count > 100 ? 3.6 : 5.6;
    const alpha = filters.count > 4000 ? 0.45 : filters.count > 600 ? 0.6 : 0.85;
    const rows = (group ? group.labels : [""]).map(() => []);
    for (let at = 0; at < filters.count; at += 1) rows[group ? group.codes[filters.rows[at]] : 0].push(filters.rows[at]);
    return rows.map((own, at) => ({ mark: "points", x: x.values, y: y.values, rows: own, colour: GROUPS[at % GROUPS.length], label: group ? group.labels[at] : "", size, alpha }));
  }

  function cells(x, y, scales, width, height) {
    const [across, up] = [binned(x, FINE), binned(y, FINE)];
    const [wide, lines] = [Math.ceil(width / CELL), Math.ceil(height / CELL)];
    const cellsOf = (bins, scale, count) => Int32Array.from({ length: bins.count }, (_, code) => {
      const cell = Math.floor(scale((bins.edge(code) + bins.edge(code + 1)) / 2) / CELL);
      return cell >= 0 && cell < count ? cell : -1;
    });
    const counts = countsInCells(across, up, cellsOf(across, scales.x, wide), cellsOf(up, scales.y, lines), wide, lines, filters.rows, filters.count);
    let most = 1;
    for (const it of counts) if (it > most) most = it;
    return { mark: "pixels", shares: Float32Array.from(counts, (it) => Math.log1p(it) / Math.log1p(most)), lines, size: CELL, colour: density };
  }

  function frontLine(x, y) {
    return population.judged ? [{ mark: "line", x: front.map((row) => x.values[row]), y: front.map((row) => y.values[row]), colour: "--strong", width: 1.1, label: "no other one is better in both" }] : [];
  }

  function limits(x, across, up) {
    const ends = population.limits[x.name] || {};
    const known = new Set(population.get("hardware")?.labels || Object.keys(ends));
    const shown = Object.entries(ends).filter(([name, value]) => known.has(name) && value <= across.high && value >= across.low);
    return shown.flatMap(([name, value]) => [
      { mark: "line", x: [value, value], y: [up.low, up.high], colour: "--soft", dashed: true, width: 0.8 },
      { mark: "text", x: value, y: up.high, text: `${name}: ${x.written(value)}`, colour: "--ink", align: "right", valign: "bottom", dx: -2, angle: 90 },
    ]);
  }

  function diagonal({ low, high }) {
    const line = (factor, about) => ({ mark: "line", x: [low, high], y: [low * factor, high * factor], width: 0.8, ...about });
    const aside = { colour: "--soft", dashed: true, label: "10 % more and less" };
    return [line(1, { colour: "--ink", label: "equal" }), line(BAND, aside), line(1 / BAND, aside)];
  }

  // ---------------------------------------------------------------- the front and the chosen row

  const placeOf = (row) => {
    const [x, y] = columns();
    return [drawn.scales.x(x.values[row]), drawn.scales.y(y.values[row])];
  };

  function listFront(x, y) {
    const marks = s("g", { role: "listbox", "aria-label": `${front.length} ${population.many} that no other one beats in ${x.title} and ${y.title}`, class: "marks" });
    const listed = front.length > 60 ? front.filter((_, at) => at % Math.ceil(front.length / 60) === 0) : front;
    listed.forEach((row, at) => {
      const said = `${x.title} ${x.text(row, 3)}, ${y.title} ${y.text(row, 3)}; ${population.label(row)}`;
      const [cx, cy] = placeOf(row);
      const mark = s("circle", { cx, cy, r: 4.5, role: "option", "aria-label": said, tabindex: at ? "-1" : "0", "aria-selected": String(row === view.row), class: "mark", "data-row": row });
      mark.addEventListener("focus", () => tipOf(row));
      mark.addEventListener("blur", hideTip);
      mark.addEventListener("keydown", (event) => walk(event, mark, row));
      marks.append(mark);
    });
    if (listed.length) svg.append(marks);
    drawChosen();
  }

  function drawChosen() {
    if (!drawn) return;
    svg.querySelector(".chosen")?.remove();
    svg.querySelectorAll(".mark").forEach((it) => it.setAttribute("aria-selected", String(it.dataset.row === String(view.row))));
    if (view.row === null || !filters.passes(view.row)) return;
    const [cx, cy] = placeOf(view.row);
    if (Number.isFinite(cx) && Number.isFinite(cy)) svg.append(s("circle", { class: "chosen", cx, cy, r: 8 }));
  }

  function walk(event, mark, row) {
    const next = { ArrowRight: mark.nextElementSibling, ArrowDown: mark.nextElementSibling, ArrowLeft: mark.previousElementSibling, ArrowUp: mark.previousElementSibling }[event.key];
    if (next) {
      event.preventDefault();
      mark.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      view.select(row);
      svg.querySelector(`.mark[data-row="${row}"]`)?.focus();
    }
  }

  function tipOf(row, at = null) {
    const [x, y] = columns();
    const box = svg.getBoundingClientRect();
    const [left, top] = placeOf(row);
    showTip([`${y.text(row)}, ${x.text(row)}`, ...population.described(row).slice(0, 9).map(([name, text]) => `${name}: ${text}`)], ...(at || [box.left + left, box.top + top]));
  }

  // ---------------------------------------------------------------- pointing

  // The row nearest to the pointer, of all that pass.
  function rowAt(event) {
    const box = svg.getBoundingClientRect();
    const [x, y] = columns();
    const every = { mark: "points", x: x.values, y: y.values, rows: filters.rows.subarray(0, filters.count) };
    const hit = found({ scales: drawn.scales, marks: [every] }, event.clientX - box.left, event.clientY - box.top, REACH);
    return hit ? hit.at : -1;
  }

  let waiting = false;
  svg.addEventListener("pointermove", (event) => {
    if (waiting || !drawn) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const row = rowAt(event);
      svg.style.cursor = row >= 0 ? "pointer" : "default";
      if (row >= 0) tipOf(row, [event.clientX, event.clientY]);
      else hideTip();
    });
  });
  svg.addEventListener("pointerleave", hideTip);
  svg.addEventListener("click", (event) => {
    const row = Number(event.target.dataset?.row ?? rowAt(event));
    if (row >= 0) view.select(row);
  });

  function frontTable() {
    const [x, y] = columns();
    const rows = population.judged ? front.slice(0, 200) : filters.best(population.get(view.rank), 200);
    const names = population.choices.filter((it) => it.name !== "fits");
    return plainTable([x.title, y.title, ...names.map((it) => it.short || it.title)], rows.map((row) => [x.text(row), y.text(row), ...names.map((it) => it.text(row))]));
  }

  const redraw = (name) => (value) => {
    state[name] = value;
    draw();
  };
  controls.append(choose("Up", options, state.y, redraw("y")), choose("Across", options, state.x, redraw("x")));
  if (groups.length) controls.append(choose("Colour", [{ value: "", title: "one" }, ...groups.map((it) => ({ value: it.name, title: it.title }))], state.group || "", redraw("group")));
  const trades = population.trades.filter(([x, y]) => population.get(x)?.isDrawn && population.get(y)?.isDrawn);
  view.onShow(draw, frame);
  filters.onChange(() => view.later(draw));
  view.onSelect(() => view.later(drawChosen));
  const title = compares ? "Projected against measured" : population.judged ? "Trade-offs" : "Two figures";
  const presets = trades.length > 1 ? h("div", { class: "presets", role: "group", "aria-label": "Pairs of figures" }, trades.map(([x, y]) => h("button", { type: "button", class: "quiet small", onclick: () => { Object.assign(state, { x, y }); sync(); draw(); } }, `${population.get(y).short} / ${population.get(x).short}`))) : null;
  function sync() {
    const selects = controls.querySelectorAll("select");
    selects[0].value = state.y;
    selects[1].value = state.x;
  }
  return h("section", { class: "card", "aria-label": title }, h("header", {}, h("h2", {}, title), controls), presets, frame, legend, note, table.node);
}

function grouping(population) {
  for (const name of ["file", "hardware", "framework", "model", "engine", "precision"]) {
    const column = population.get(name);
    if (column && column.labels.length > 1 && column.labels.length <= GROUPS.length) return name;
  }
  return "";
}
