// A heat map over any two axes: the best of each cell, or how many rows are there.

import { binned } from "./bins.js";
import { density } from "./colours.js";
import { choose, h } from "./dom.js";
import { cellsTable, ramp } from "./figure.js";
import { whole } from "./format.js";

const MOST = 40;
const BINS = 10;
const COUNT = "count of rows";
const DECADES = 30; // a wider range than this factor has logarithmic colours

export function heatmap(view) {
  const { population, filters } = view;
  const axes = [...population.choices.filter((it) => it.labels.length <= MOST && it.labels.length > 1), ...population.figures];
  if (axes.length < 2) return null;
  const choices = axes.filter((it) => it.isChoice && it.name !== "fits");
  const state = { x: (choices[1] || axes[1]).name, y: (choices[0] || axes[0]).name, value: view.rank };
  // The two choices with the most values tell the most.
  const ranked = [...choices].sort((a, b) => b.labels.length - a.labels.length).slice(0, 2);
  if (ranked.length === 2) [state.x, state.y] = [ranked[0].name, ranked[1].name];
  if (population.map.length && population.map.every((name) => axes.some((it) => it.name === name))) [state.y, state.x] = population.map;
  const body = h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Heat map" });
  const note = h("p", { class: "note" });
  const scale = h("div", { class: "legend" });

  function draw() {
    const [x, y] = [binned(population.get(state.x), BINS), binned(population.get(state.y), BINS)];
    const value = state.value === COUNT ? null : population.get(state.value);
    const { best, rows, counted } = gathered(x, y, value);
    const shown = value ? best : Float64Array.from(counted, (it) => it || NaN);
    const filled = (bins, at) => Array.from({ length: bins.count }, (_, code) => code).filter((code) => shown.some((it, cell) => !Number.isNaN(it) && at(cell) === code));
    const [heads, lines] = [filled(x, (cell) => cell % x.count), filled(y, (cell) => Math.floor(cell / x.count))];
    const cellOf = (line, head) => lines[line] * x.count + heads[head];
    const written = (it, count = 3) => (value ? value.written(it, count) : whole(it));
    const known = shown.filter((it) => !Number.isNaN(it));
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const cells = {
      values: lines.map((_, line) => heads.map((_, head) => shown[cellOf(line, head)])),
      texts: lines.map((_, line) => heads.map((_, head) => (Number.isNaN(shown[cellOf(line, head)]) ? "" : written(shown[cellOf(line, head)]).replace(/ (GiB|%|USD|days|h|s|ms|µs|J|W)$/, "")))),
      scale: { low, high, scale: low > 0 && high / low > DECADES ? "log" : "linear" },
      reverse: Boolean(value && !value.larger),
    };
    const words = (line, head) => `${x.column.title} ${x.labels[heads[head]]}, ${y.column.title} ${y.labels[lines[line]]}: ${written(shown[cellOf(line, head)], 4)}, ${whole(counted[cellOf(line, head)])} ${population.many}`;
    const press = (line, head) => (value ? view.select(rows[cellOf(line, head)]) : narrow(x, heads[head], y, lines[line]));
    const caption = `${value ? value.title : "Rows"} by ${x.column.title} and ${y.column.title}`;
    body.replaceChildren(cellsTable({ x: axisOf(x, heads), y: axisOf(y, lines) }, cells, { caption, words, press, colour: density }));
    const what = value ? `the ${value.larger ? "largest" : "smallest"} ${value.title} of the ${population.many} of a cell` : `how many ${population.many} are in a cell`;
    note.textContent = filters.count ? `Each number is ${what} that pass. ${value ? `A cell chooses that ${population.one}` : "A cell filters"}; arrow keys move.` : `No ${population.one} passes.`;
    scale.replaceChildren(...ramp(cells, written, density));
  }

  // Of each cell the best number and its row, and how many rows it has.
  function gathered(x, y, value) {
    const size = x.count * y.count;
    const [best, rows, counted] = [new Float64Array(size).fill(NaN), new Int32Array(size).fill(-1), new Uint32Array(size)];
    const larger = !value || value.larger;
    for (let at = 0; at < filters.count; at += 1) {
      const row = filters.rows[at];
      const cell = y.codes[row] * x.count + x.codes[row];
      counted[cell] += 1;
      if (!value) continue;
      const it = value.values[row];
      if (!(larger ? it <= best[cell] : it >= best[cell]) && !Number.isNaN(it)) {
        best[cell] = it;
        rows[cell] = row;
      }
    }
    return { best, rows, counted };
  }

  function axisOf(bins, codes) {
    return { title: bins.column.title, low: codes.length - 0.5, high: -0.5, ticks: codes.map((code, at) => [at, bins.labels[code]]) };
  }

  function narrow(x, head, y, code) {
    for (const [bins, at] of [[x, head], [y, code]]) {
      if (bins.column.isChoice) filters.set(bins.column.name, { allowed: new Set([at]) });
      else filters.set(bins.column.name, { low: bins.edge(at), high: bins.edge(at + 1) });
    }
  }

  const redraw = (name) => (it) => {
    state[name] = it;
    draw();
  };
  const options = axes.map((it) => ({ value: it.name, title: it.title }));
  const values = [...population.figures.map((it) => ({ value: it.name, title: it.title })), { value: COUNT, title: COUNT.replace("rows", population.many) }];
  const controls = h("div", { class: "controls" }, choose("Down", options, state.y, redraw("y")), choose("Across", options, state.x, redraw("x")), choose("Value", values, state.value, redraw("value")));
  view.onShow(draw, body);
  filters.onChange(() => view.later(draw));
  return h("section", { class: "card", "aria-label": "Heat map" }, h("header", {}, h("h2", {}, "Heat map"), controls), body, scale, note);
}
