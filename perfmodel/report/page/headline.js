// What the results say at a glance.

import { h } from "./dom.js";
import { whole } from "./format.js";

export function headline(view) {
  const { population } = view;
  const tiles = h("div", { class: "tiles" });
  const fits = fitting(population);
  const draw = () => {
    const row = view.first();
    if (row === null) return;
    const shown = population.kind === "comparison" ? errors(population, view.filters) : best(population, row);
    shown.push({ name: population.rows === 1 ? population.one : population.many, value: whole(population.rows), note: [population.total > population.rows && `of ${whole(population.total)}`, fits].filter(Boolean).join("; ") || null });
    tiles.replaceChildren(...shown.map((it) => h("div", { class: "tile" }, h("div", { class: "tile-name" }, it.name), h("div", { class: "tile-value" }, it.value), it.note ? h("div", { class: "tile-note" }, it.note) : null)));
  };
  view.filters.onChange(() => view.later(draw));
  view.onRank(draw);
  draw();
  return h("section", { class: "headline", "aria-label": "At a glance" }, tiles);
}

// How many rows fit in memory, in words, where the results say so.
function fitting(population) {
  const fits = population.get("fits");
  if (!fits) return { yes: "all fit in memory", tight: "all fit in memory, tightly" }[population.common.find((it) => it.name === "fits")?.value] ?? null;
  const counts = fits.labels.map(() => 0);
  for (const code of fits.codes) counts[code] += 1;
  const of = (label) => counts[fits.labels.indexOf(label)] ?? 0;
  const tight = of("tight");
  return `${whole(of("yes") + tight)} fit in memory${tight ? `, ${whole(tight)} of them tightly` : ""}`;
}

function best(population, row) {
  const names = [population.rank, ...population.table.filter((it) => it !== population.rank)].slice(0, 5);
  return names.map((name) => population.get(name)).filter((it) => it && !Number.isNaN(it.value(row))).map((it, at) => {
    const ends = (population.bands[it.name] || []).map((end) => (end ? population.get(end)?.value(row) : NaN));
    const hardware = population.get("hardware")?.text(row) ?? population.common.find((one) => one.name === "hardware")?.value;
    const limit = population.limits[it.name]?.[hardware];
    let note = limit ? `of ${it.written(limit)}` : null;
    if (ends.length && ends.every(Number.isFinite)) note = `${it.written(ends[0], 3).replace(/ \D+$/, "")}–${it.written(ends[1], 3)} (10–90 %)`;
    return { name: at ? it.short || it.title : `${population.judged ? "best" : "longest"} ${it.short || it.title}`, value: it.text(row), note };
  });
}

function errors(population, filters) {
  const { values } = population.get("absolute_error");
  const { values: signed } = population.get("error");
  const rows = Array.from(filters.rows.subarray(0, filters.count)).sort((a, b) => values[a] - values[b]);
  const at = (share) => values[rows[Math.min(rows.length - 1, Math.floor(share * rows.length))]];
  const percent = (value) => population.get("error").written(value);
  return [
    { name: "median error", value: percent(rows.length % 2 ? at(0.5) : (values[rows[rows.length / 2 - 1]] + values[rows[rows.length / 2]]) / 2) },
    { name: "mean error", value: percent(rows.reduce((sum, row) => sum + values[row], 0) / rows.length) },
    { name: "90th percentile", value: percent(at(0.9)) },
    { name: "bias", value: percent(rows.reduce((sum, row) => sum + signed[row], 0) / rows.length), note: "above 0: projected too slow" },
  ];
}
