// Two figures against each other: points or their density, and what no other row beats.

import { binned, countsInCells } from "./bins.js";
import { colours, density } from "./colours.js";
import { behind, choose, h, hideTip, plainTable, s, sharpen, showTip } from "./dom.js";
import { UNITS, whole } from "./format.js";
import { frontOf } from "./front.js";

const MOST_POINTS = 40_000;
const MARGIN = { top: 30, right: 18, bottom: 44, left: 62 };
const FINE = 1536; // bins of a figure from which cells of any size are made
const CELL = 4; // px
const DECADES = 60; // a wider range than this factor is drawn on a logarithmic scale
const MOST_GROUPS = 7;
const REACH = 24; // px around the pointer

export function scatter(view) {
  const { population, filters } = view;
  const figures = population.figures;
  if (figures.length < 2) return null;
  const compares = population.kind === "comparison";
  const [firstX, firstY] = population.trades[0] || [figures[1].name, figures[0].name];
  const state = { x: firstX, y: firstY, group: grouping(population) };
  const logs = new Map();
  const options = figures.map((it) => ({ value: it.name, title: it.title }));
  const groups = population.choices.filter((it) => it.labels.length <= MOST_GROUPS && it.name !== "fits");
  const canvas = h("canvas", { "aria-hidden": "true" });
  const svg = s("svg", { class: "over", role: "group" });
  const frame = h("div", { class: "chart" }, canvas, svg);
  const legend = h("div", { class: "legend" });
  const note = h("p", { class: "note" });
  const controls = h("div", { class: "controls" });
  const table = behind(population.judged ? "The front as a table" : `The first ${population.many} as a table`, frontTable);
  let [front, scales] = [[], null];

  function draw() {
    const [x, y] = [population.get(state.x), population.get(state.y)];
    const width = Math.max(260, frame.clientWidth);
    const height = Math.round(Math.min(460, Math.max(300, width * 0.56)));
    const theme = colours();
    scales = {
      x: scaleOf(x, [MARGIN.left, width - MARGIN.right]),
      y: scaleOf(y, [height - MARGIN.bottom, MARGIN.top]),
    };
    if (compares && state.x === "measured" && state.y === "projected") {
      const ends = [Math.min(scales.x.domain()[0], scales.y.domain()[0]), Math.max(scales.x.domain()[1], scales.y.domain()[1])];
      scales.x.domain(ends);
      scales.y.domain(ends);
    }
    const context = sharpen(canvas, width, height);
    const group = state.group && population.get(state.group);
    const points = filters.count <= MOST_POINTS;
    if (points) drawPoints(context, x, y, group, theme);
    else drawDensity(context, x, y, width, height);
    front = population.judged ? frontOf(filters, x, y) : [];
    drawOver(x, y, width, height, theme);
    legend.replaceChildren(...legendOf(points ? group : null, points, theme));
    const drawn = points ? `${whole(filters.count)} points, one for each ${population.one}.` : `${whole(filters.count)} ${population.many} as their density: the deeper the colour, the more in one place.`;
    const levels = population.isExact ? "" : " Numbers of most are drawn in levels; the best and the front are exact.";
    note.textContent = drawn + levels;
    table.refresh();
  }

  function drawPoints(context, x, y, group, theme) {
    const size = filters.count > 4000 ? 2 : filters.count > 600 ? 3 : filters.count > 100 ? 5 : 8;
    context.globalAlpha = filters.count > 4000 ? 0.45 : filters.count > 600 ? 0.6 : 0.85;
    for (let at = 0; at < filters.count; at += 1) {
      const row = filters.rows[at];
      context.fillStyle = group ? theme.groups[group.codes[row] % MOST_GROUPS] : theme.groups[0];
      const [left, top] = [scales.x(x.values[row]), scales.y(y.values[row])];
      if (size > 3) {
        context.beginPath();
        context.arc(left, top, size / 2 + 0.5, 0, 7);
        context.fill();
      } else context.fillRect(left - size / 2, top - size / 2, size, size);
    }
    context.globalAlpha = 1;
  }

  // The scale of what passes; whether it is logarithmic stays as it was first.
  function scaleOf(column, range) {
    const { low, high, positive } = filters.extentOf(column);
    if (!logs.has(column.name)) logs.set(column.name, low > 0 && (compares ? column.name !== "error" : high / low > DECADES));
    if (logs.get(column.name) && positive < Infinity) return d3.scaleLog().domain([positive / 1.05, high * 1.05]).range(range);
    const pad = (high - low) * 0.03 || Math.abs(high) * 0.05 || 1;
    return d3.scaleLinear().domain([Math.max(low - pad, low >= 0 ? 0 : -Infinity), high + pad]).range(range);
  }

  function drawDensity(context, x, y, width, height) {
    const [across, up] = [binned(x, FINE), binned(y, FINE)];
    const [columns, lines] = [Math.ceil(width / CELL), Math.ceil(height / CELL)];
    const cellsOf = (bins, scale, count) => Int32Array.from({ length: bins.count }, (_, code) => {
      const cell = Math.floor(scale((bins.edge(code) + bins.edge(code + 1)) / 2) / CELL);
      return cell >= 0 && cell < count ? cell : -1;
    });
    const found = countsInCells(across, up, cellsOf(across, scales.x, columns), cellsOf(up, scales.y, lines), columns, lines, filters.rows, filters.count);
    let most = 1;
    for (const it of found) if (it > most) most = it;
    const of = 1 / Math.log1p(most);
    for (let a = 0; a < columns; a += 1) {
      for (let b = 0; b < lines; b += 1) {
        const count = found[a * lines + b];
        if (!count) continue;
        context.fillStyle = density(Math.log1p(count) * of);
        context.fillRect(a * CELL, b * CELL, CELL, CELL);
      }
    }
  }

  function drawOver(x, y, width, height, theme) {
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.setAttribute("aria-label", `${y.title} against ${x.title}`);
    svg.replaceChildren();
    const root = d3.select(svg);
    const ticks = (scale, column, axis, count) => {
      const unit = UNITS[column.form] || 1;
      const units = scale.copy().domain(scale.domain().map((it) => it / unit));
      return axis(units).ticks(count).tickFormat((value) => tickText(units, value, column, unit)).tickSizeOuter(0);
    };
    root.append("g").attr("class", "axis").attr("aria-hidden", "true").attr("transform", `translate(0,${height - MARGIN.bottom + 2})`).call(ticks(scales.x, x, d3.axisBottom, width < 480 ? 4 : 7));
    root.append("g").attr("class", "axis").attr("aria-hidden", "true").attr("transform", `translate(${MARGIN.left - 4},0)`).call(ticks(scales.y, y, d3.axisLeft, 6));
    const words = (column, more, less) => column.title + (!population.judged ? "" : `, ${column.larger ? more : less} is better`);
    svg.append(
      s("text", { class: "axis-title", x: width - MARGIN.right, y: height - 6, "text-anchor": "end" }, words(x, "more →", "← less")),
      s("text", { class: "axis-title", x: 4, y: 14 }, words(y, "more ↑", "less ↓")),
    );
    limits(x, height);
    if (compares && state.x === "measured" && state.y === "projected") diagonal();
    if (front.length) {
      const path = front.map((row, at) => `${at ? "L" : "M"}${scales.x(x.values[row]).toFixed(1)} ${scales.y(y.values[row]).toFixed(1)}`).join("");
      svg.append(s("path", { class: "front", d: path }));
    }
    const marks = s("g", { role: "listbox", "aria-label": `${front.length} ${population.many} that no other one beats in ${x.title} and ${y.title}`, class: "marks" });
    const listed = front.length > 60 ? front.filter((_, at) => at % Math.ceil(front.length / 60) === 0) : front;
    listed.forEach((row, at) => {
      const words = `${x.title} ${x.text(row, 3)}, ${y.title} ${y.text(row, 3)}; ${population.label(row)}`;
      const mark = s("circle", { cx: scales.x(x.values[row]), cy: scales.y(y.values[row]), r: 4.5, role: "option", "aria-label": words, tabindex: at ? "-1" : "0", "aria-selected": String(row === view.row), class: "mark", "data-row": row });
      mark.addEventListener("click", () => view.select(row));
      mark.addEventListener("focus", () => tipOf(row));
      mark.addEventListener("blur", hideTip);
      mark.addEventListener("keydown", (event) => keys(event, mark, row));
      marks.append(mark);
    });
    if (listed.length) svg.append(marks);
    drawChosen();
  }

  function drawChosen() {
    if (!scales) return;
    const [x, y] = [population.get(state.x), population.get(state.y)];
    svg.querySelector(".chosen")?.remove();
    svg.querySelectorAll(".mark").forEach((it) => it.setAttribute("aria-selected", String(it.dataset.row === String(view.row))));
    if (view.row === null || !filters.passes(view.row) || !Number.isFinite(x.values[view.row])) return;
    svg.append(s("circle", { class: "chosen", cx: scales.x(x.values[view.row]), cy: scales.y(y.values[view.row]), r: 8 }));
  }

  function limits(x, height) {
    const ends = population.limits[x.name];
    if (!ends) return;
    const known = new Set(population.get("hardware")?.labels || Object.keys(ends));
    for (const [name, value] of Object.entries(ends)) {
      if (!known.has(name) || value > scales.x.domain()[1]) continue;
      const left = scales.x(value);
      svg.append(s("line", { class: "limit", x1: left, x2: left, y1: MARGIN.top, y2: height - MARGIN.bottom }), s("text", { class: "limit-text", x: left - 5, y: MARGIN.top + 2, "text-anchor": "end", transform: `rotate(-90 ${left - 5} ${MARGIN.top + 2})` }, `${name}: ${x.written(value)}`));
    }
  }

  function diagonal() {
    const [low, high] = scales.x.domain();
    const line = (factor, name) => s("line", { class: name, x1: scales.x(low), y1: scales.y(low * factor), x2: scales.x(high), y2: scales.y(high * factor) });
    svg.append(line(1, "same"), line(1.1, "limit"), line(1 / 1.1, "limit"));
  }

  function keys(event, mark, row) {
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
    const [x, y] = [population.get(state.x), population.get(state.y)];
    const box = svg.getBoundingClientRect();
    const place = at || [box.left + scales.x(x.values[row]), box.top + scales.y(y.values[row])];
    showTip([`${y.text(row)}, ${x.text(row)}`, ...population.described(row).slice(0, 9).map(([name, text]) => `${name}: ${text}`)], ...place);
  }

  function nearest(event) {
    const [x, y] = [population.get(state.x), population.get(state.y)];
    const box = svg.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const [low, high] = [scales.x.invert(left - REACH), scales.x.invert(left + REACH)];
    const [under, over] = [scales.y.invert(top + REACH), scales.y.invert(top - REACH)];
    let [best, least] = [-1, REACH * REACH];
    for (let at = 0; at < filters.count; at += 1) {
      const row = filters.rows[at];
      const [value, other] = [x.values[row], y.values[row]];
      if (value < low || value > high || other < under || other > over) continue;
      const distance = (scales.x(value) - left) ** 2 + (scales.y(other) - top) ** 2;
      if (distance < least) [best, least] = [row, distance];
    }
    return best;
  }

  let waiting = false;
  svg.addEventListener("pointermove", (event) => {
    if (waiting || !scales) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const row = nearest(event);
      svg.style.cursor = row >= 0 ? "pointer" : "default";
      if (row >= 0) tipOf(row, [event.clientX, event.clientY]);
      else hideTip();
    });
  });
  svg.addEventListener("pointerleave", hideTip);
  svg.addEventListener("click", (event) => {
    const row = nearest(event);
    if (row >= 0) view.select(row);
  });

  function frontTable() {
    const [x, y] = [population.get(state.x), population.get(state.y)];
    const rows = population.judged ? front.slice(0, 200) : filters.best(population.get(view.rank), 200);
    const names = population.choices.filter((it) => it.name !== "fits");
    return plainTable([x.title, y.title, ...names.map((it) => it.short || it.title)], rows.map((row) => [x.text(row), y.text(row), ...names.map((it) => it.text(row))]));
  }

  function legendOf(group, points, theme) {
    const items = [];
    if (population.judged) items.push(h("span", { class: "key" }, h("span", { class: "key-line" }), "no other one is better in both"));
    if (group && points) group.labels.forEach((label, at) => items.push(h("span", { class: "key" }, h("span", { class: "key-dot", style: { background: theme.groups[at % MOST_GROUPS] } }), label)));
    if (compares && state.x === "measured" && state.y === "projected") items.push(h("span", { class: "key" }, "solid: equal; dashed: 10 % more and less"));
    return items;
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
  const words = compares ? "Projected against measured" : population.judged ? "Trade-offs" : "Two figures";
  const presets = trades.length > 1 ? h("div", { class: "presets", role: "group", "aria-label": "Pairs of figures" }, trades.map(([x, y]) => h("button", { type: "button", class: "quiet small", onclick: () => { Object.assign(state, { x, y }); sync(); draw(); } }, `${population.get(y).short} / ${population.get(x).short}`))) : null;
  function sync() {
    const selects = controls.querySelectorAll("select");
    selects[0].value = state.y;
    selects[1].value = state.x;
  }
  return h("section", { class: "card", "aria-label": words }, h("header", {}, h("h2", {}, words), controls), presets, frame, legend, note, table.node);
}

function grouping(population) {
  for (const name of ["file", "hardware", "framework", "model", "engine", "precision"]) {
    const column = population.get(name);
    if (column && column.labels.length > 1 && column.labels.length <= MOST_GROUPS) return name;
  }
  return "";
}

// Labels of a logarithmic scale at 1, 2 and 5 of each decade, or at 1 where there are many.
function tickText(scale, value, column, unit) {
  if (scale.base) {
    const [low, high] = scale.domain();
    const decades = Math.log10(high / low);
    const lead = Math.round(10 * Number(value.toExponential().split("e")[0])) / 10;
    if (decades > 3 ? lead !== 1 : decades > 0.8 && ![1, 2, 5].includes(lead)) return "";
  }
  return column.written(value * unit, 3).replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
}
