// Hardware, files or any choice side by side: the best of each.

import { FAMILIES, family } from "./colours.js";
import { choose, h } from "./dom.js";
import { whole } from "./format.js";

const MOST = 24;

export function sides(view) {
  const { population, filters } = view;
  const possible = population.choices.filter((it) => it.labels.length > 1 && it.labels.length <= MOST && it.name !== "fits");
  if (!possible.length) return null;
  const first = ["hardware", "file", "framework", "model", "engine", "devices"].find((name) => possible.some((it) => it.name === name));
  const state = { by: first || possible[0].name };
  const body = h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Side by side" });
  const waterfall = population.waterfalls[0];
  const compares = population.kind === "comparison";

  function draw() {
    const by = population.get(state.by);
    const rank = population.get(view.rank);
    const best = new Int32Array(by.labels.length).fill(-1);
    const counted = new Uint32Array(by.labels.length);
    const sums = new Float64Array(by.labels.length);
    for (let at = 0; at < filters.count; at += 1) {
      const row = filters.rows[at];
      const code = by.codes[row];
      counted[code] += 1;
      if (compares) sums[code] += population.get("error").values[row];
      const other = best[code];
      if (other < 0 || (rank.larger ? rank.values[row] > rank.values[other] : rank.values[row] < rank.values[other])) best[code] = row;
    }
    const codes = by.labels.map((_, code) => code).filter((code) => best[code] >= 0);
    if (!by.numbers) codes.sort((a, b) => (rank.larger ? -1 : 1) * (rank.values[best[a]] - rank.values[best[b]]));
    const most = Math.max(...codes.map((code) => rank.values[best[code]]));
    const answer = population.get(population.answer);
    const banded = answer && population.bands[answer.name] ? answer : null;
    const reach = banded && span(banded, codes.map((code) => best[code]));
    const parts = waterfall && waterfall.parts.length > 1;
    const heads = [by.title, population.many, compares ? "worst error" : `${population.judged ? "best" : "longest"} ${rank.short || rank.title}`];
    if (compares) heads.push("mean error");
    if (banded) heads.push(`${banded.short || banded.title}, 10 to 90 %`);
    const figures = population.table.map((name) => population.get(name)).filter((it) => it && it !== rank && it !== banded);
    heads.push(...figures.map((it) => it.short || it.title));
    if (parts) heads.push(FAMILIES.map(([, words]) => words).join(" · "));
    heads.push(`which ${population.one}`);
    const lines = codes.map((code) => {
      const row = best[code];
      const share = `${(100 * rank.values[row]) / most}%`;
      return h("tr", { class: row === view.row ? "selected" : "" },
        h("th", { scope: "row" }, by.labels[code]),
        h("td", {}, whole(counted[code])),
        h("td", { class: "bar-cell" }, h("span", { class: "bar-track", "aria-hidden": "true" }, h("span", { class: "bar-fill", style: { width: share } })), h("span", {}, rank.text(row))),
        compares ? h("td", {}, population.get("error").written(sums[code] / counted[code])) : null,
        banded ? h("td", { class: "bar-cell" }, h("span", {}, banded.text(row)), band(banded, row, reach)) : null,
        figures.map((it) => h("td", {}, it.text(row), limitOf(it, row))),
        parts ? h("td", {}, composition(row)) : null,
        h("td", { class: "word" }, h("button", { type: "button", class: "link", onclick: () => view.select(row, true) }, population.described(row).filter(([name]) => name !== (by.short || by.title)).slice(0, 7).map(([name, text]) => `${name} ${text}`).join(" · "))));
    });
    body.replaceChildren(h("table", { class: "sides" }, h("caption", { class: "sr" }, `The best ${population.one} of every ${by.title}`), h("thead", {}, h("tr", {}, heads.map((it) => h("th", { scope: "col" }, it)))), h("tbody", {}, lines.length ? lines : h("tr", {}, h("td", { class: "nothing", colspan: heads.length }, `No ${population.one} passes.`)))));
  }

  function ends(column, row) {
    return population.bands[column.name].map((name) => (name ? population.get(name).value(row) : column.value(row)));
  }

  function span(column, rows) {
    const all = rows.flatMap((row) => ends(column, row)).filter(Number.isFinite);
    return all.length ? [0, Math.max(...all)] : [0, 1];
  }

  function band(column, row, [low, high]) {
    const [from, to] = ends(column, row);
    if (!Number.isFinite(from) || !Number.isFinite(to)) return null;
    const share = (value) => `${(100 * (value - low)) / (high - low || 1)}%`;
    const words = `10 to 90 %: ${column.written(from, 3)} to ${column.written(to, 3)}`;
    return h("span", { class: "range wide", role: "img", "aria-label": words, title: words }, h("span", { class: "range-bar", style: { left: share(from), right: `calc(100% - ${share(to)})` } }), h("span", { class: "range-dot", style: { left: share(column.value(row)) } }));
  }

  function limitOf(column, row) {
    const limits = population.limits[column.name];
    const hardware = population.get("hardware")?.text(row) ?? population.common.find((it) => it.name === "hardware")?.value ?? Object.keys(limits || {})[0];
    return limits && limits[hardware] ? h("span", { class: "soft" }, ` of ${column.written(limits[hardware])}`) : null;
  }

  function composition(row) {
    const sums = { compute: 0, communication: 0, waiting: 0, memory: 0 };
    const whole_ = population.get(waterfall.whole).value(row);
    for (const part of waterfall.parts) {
      const value = population.get(part.name)?.value(row);
      if (!Number.isFinite(value)) return h("span", { class: "soft" }, "not in this page");
      sums[family(part.name)] += value;
    }
    const shown = FAMILIES.filter(([name]) => sums[name] > 0);
    const words = shown.map(([name]) => `${name} ${((100 * sums[name]) / whole_).toFixed(1)} %`).join(", ");
    return h("span", { class: "parts" }, h("span", { class: "parts-bar", role: "img", "aria-label": words }, shown.map(([name]) => h("span", { class: `part-${name}`, style: { width: `${(100 * sums[name]) / whole_}%` } }))), h("span", { class: "parts-words" }, FAMILIES.map(([name]) => `${((100 * sums[name]) / whole_).toFixed(sums[name] / whole_ < 0.1 ? 1 : 0)} %`).join(" · ")));
  }

  const options = possible.map((it) => ({ value: it.name, title: it.title }));
  const controls = h("div", { class: "controls" }, choose("By", options, state.by, (value) => {
    state.by = value;
    draw();
  }));
  view.onShow(draw, body);
  filters.onChange(() => view.later(draw));
  view.onSelect(() => view.later(draw));
  view.onRank(() => view.later(draw));
  return h("section", { class: "card", "aria-label": "Side by side" }, h("header", {}, h("h2", {}, "Side by side"), controls), body);
}
