// A heat map over any two axes: a table whose cells are coloured.

import { binned } from "./bins.js";
import { density, readable } from "./colours.js";
import { choose, h } from "./dom.js";
import { whole } from "./format.js";

const MOST = 40;
const BINS = 10;
const COUNT = "count of rows";

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
    const size = x.count * y.count;
    const best = new Float64Array(size).fill(NaN);
    const rows = new Int32Array(size).fill(-1);
    const counted = new Uint32Array(size);
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
    const shown = value ? best : Float64Array.from(counted, (it) => it || NaN);
    let [low, high] = [Infinity, -Infinity];
    for (const it of shown) {
      if (it < low) low = it;
      if (it > high) high = it;
    }
    const log = low > 0 && high / low > 30;
    const share = (it) => (high > low ? (log ? Math.log(it / low) / Math.log(high / low) : (it - low) / (high - low)) : 0.5);
    const written = (it, count = 3) => (value ? value.written(it, count) : whole(it));
    const heads = Array.from({ length: x.count }, (_, code) => code).filter((code) => column(shown, x.count, y.count, code));
    const lines = Array.from({ length: y.count }, (_, code) => code).filter((code) => heads.some((it) => !Number.isNaN(shown[code * x.count + it])));
    let first = true;
    const tableRows = lines.map((code) => {
      const cells = heads.map((head) => {
        const at = code * x.count + head;
        if (Number.isNaN(shown[at])) return h("td", { class: "hole" }, h("span", { class: "sr" }, "none"));
        const part = share(shown[at]);
        const colour = density(value && !value.larger ? 1 - part : part);
        const words = `${x.column.title} ${x.labels[head]}, ${y.column.title} ${y.labels[code]}: ${written(shown[at], 4)}, ${whole(counted[at])} ${population.many}`;
        const button = h("button", { type: "button", class: "cell", tabindex: first ? "0" : "-1", "aria-label": words, title: words, style: { background: colour, color: readable(colour) }, onclick: () => (value ? view.select(rows[at]) : narrow(x, head, y, code)), onkeydown: keys }, written(shown[at], 3).replace(/ (GiB|%|USD|days|h|s|ms|µs|J|W)$/, ""));
        first = false;
        return h("td", {}, button);
      });
      return h("tr", {}, h("th", { scope: "row" }, y.labels[code]), cells);
    });
    body.replaceChildren(
      h("table", { class: "heat", style: { "max-width": `${110 * heads.length + 120}px` } },
        h("caption", { class: "sr" }, `${value ? value.title : "Rows"} by ${x.column.title} and ${y.column.title}`),
        h("thead", {}, h("tr", {}, h("th", { class: "corner" }, h("span", {}, `${y.column.title} ↓`), h("span", {}, `${x.column.title} →`)), heads.map((code) => h("th", { scope: "col" }, x.labels[code])))),
        h("tbody", {}, tableRows)),
    );
    const what = value ? `the ${value.larger ? "largest" : "smallest"} ${value.title} of the ${population.many} of a cell` : `how many ${population.many} are in a cell`;
    note.textContent = filters.count ? `Each number is ${what} that pass. ${value ? `A cell chooses that ${population.one}` : "A cell filters"}; arrow keys move.` : `No ${population.one} passes.`;
    const stops = Array.from({ length: 9 }, (_, at) => density(value && !value.larger ? 1 - at / 8 : at / 8)).join(", ");
    scale.replaceChildren(...(high > low ? [h("span", {}, written(low)), h("span", { class: "ramp", role: "img", "aria-label": `Colours from ${written(low)} to ${written(high)}`, style: { background: `linear-gradient(90deg, ${stops})` } }), h("span", {}, written(high))] : []));
  }

  function column(shown, width, height, code) {
    for (let line = 0; line < height; line += 1) if (!Number.isNaN(shown[line * width + code])) return true;
    return false;
  }

  function narrow(x, head, y, code) {
    for (const [bins, at] of [[x, head], [y, code]]) {
      if (bins.column.isChoice) filters.set(bins.column.name, { allowed: new Set([at]) });
      else filters.set(bins.column.name, { low: bins.edge(at), high: bins.edge(at + 1) });
    }
  }

  function keys(event) {
    const button = event.currentTarget;
    const cell = button.parentElement;
    const at = [...cell.parentElement.children].indexOf(cell);
    const move = (from, step, take) => {
      let it = step(from);
      while (it && !take(it)?.querySelector("button")) it = step(it);
      return it && take(it).querySelector("button");
    };
    const next = {
      ArrowRight: () => move(cell, (it) => it.nextElementSibling, (it) => it),
      ArrowLeft: () => move(cell, (it) => it.previousElementSibling, (it) => it),
      ArrowDown: () => move(cell.parentElement, (it) => it.nextElementSibling, (it) => it.children[at]),
      ArrowUp: () => move(cell.parentElement, (it) => it.previousElementSibling, (it) => it.children[at]),
    }[event.key]?.();
    if (!next) return;
    event.preventDefault();
    button.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
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
