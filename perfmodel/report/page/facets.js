// Filters of choices as buttons with counts, and what is filtered, in words.

import { h } from "./dom.js";
import { plural, whole } from "./format.js";
import { spoken } from "./filters.js";

const MOST_BUTTONS = 24;

export function filterBar(view) {
  const { population, filters } = view;
  const count = h("strong", { class: "count" });
  const of = h("span", { class: "soft" });
  const chips = h("ul", { class: "chips", "aria-label": "Filters in use" });
  const reset = h("button", { type: "button", class: "quiet", onclick: () => view.reset() }, "Reset");
  const status = h("div", { class: "counts", role: "status", "aria-live": "polite" }, count, " ", of);
  const draw = () => {
    count.textContent = plural(filters.count, population.one, population.many);
    of.textContent = filters.count === population.rows ? "" : `of ${whole(population.rows)}`;
    const items = [...filters.active].map(([name, wanted]) => {
      const words = spoken(population.get(name), wanted);
      const drop = () => {
        filters.set(name, null);
        reset.focus();
      };
      return h("li", {}, h("button", { type: "button", class: "chip", "aria-label": `Drop the filter ${words}`, onclick: drop }, words, h("span", { "aria-hidden": "true" }, " ×")));
    });
    chips.replaceChildren(...items);
    reset.hidden = !view.changed();
  };
  filters.onChange(draw);
  draw();
  return h("div", { class: "bar", role: "region", "aria-label": "Filters in use" }, status, chips, reset);
}

export function facets(view) {
  const { population, filters } = view;
  const shown = population.choices.filter((it) => it.labels.length <= MOST_BUTTONS && it.labels.length > 1);
  const cards = shown.map((column) => {
    const buttons = column.labels.map((label, code) =>
      h("button", { type: "button", class: "pill", title: column.about || column.title, onclick: () => toggle(view, column, code) }, h("span", { class: "pill-label" }, label), h("span", { class: "pill-count" })),
    );
    const all = h("button", { type: "button", class: "quiet small", onclick: () => filters.set(column.name, null), "aria-label": `All values of ${column.title}` }, "all");
    const card = h("div", { class: "facet", role: "group", "aria-label": column.title }, h("div", { class: "facet-title" }, h("span", {}, column.title), all), h("div", { class: "pills" }, buttons));
    return { column, buttons, all, card };
  });
  const draw = () => {
    for (const { column, buttons, all } of cards) {
      const wanted = filters.active.get(column.name);
      const counts = filters.countsOf(column.name);
      const most = Math.max(1, ...counts);
      all.hidden = !wanted;
      buttons.forEach((button, code) => {
        const on = !wanted || wanted.allowed.has(code);
        button.setAttribute("aria-pressed", String(on));
        button.classList.toggle("empty", !counts[code]);
        button.style.setProperty("--share", `${(100 * counts[code]) / most}%`);
        button.lastChild.textContent = whole(counts[code]);
      });
    }
  };
  filters.onChange(draw);
  draw();
  const open = innerWidth >= 900;
  return h("details", { class: "card filters", open }, h("summary", {}, h("h2", {}, "Filters"), h("span", { class: "soft" }, " of what was chosen; charts below filter, too")), h("div", { class: "facets" }, cards.map((it) => it.card)));
}

// The first press keeps one value alone, others add or drop theirs; the last dropped brings all.
function toggle(view, column, code) {
  const wanted = view.filters.active.get(column.name);
  if (!wanted) {
    view.filters.set(column.name, { allowed: new Set([code]) });
    return;
  }
  const allowed = new Set(wanted.allowed);
  if (allowed.has(code)) allowed.delete(code);
  else allowed.add(code);
  view.filters.set(column.name, allowed.size ? { allowed } : null);
}
