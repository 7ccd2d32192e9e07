// The best rows as a table: sorted by any figure, chosen by pointer or keyboard.

import { h } from "./dom.js";

const STEP = 20;

export function bestTable(view) {
  const { population, filters } = view;
  let shown = population.top;
  const body = h("tbody", {});
  const head = h("tr", {});
  const more = h("button", { type: "button", class: "quiet", onclick: () => { shown += STEP; draw(); } });
  const table = h("table", { class: "best", role: "grid" }, h("caption", { class: "sr" }, population.heading), h("thead", {}, head), body);
  const note = h("p", { class: "note" });
  let columns = [];

  function heads() {
    const choices = population.choices.filter((it) => it.name !== "fits" || filters.active.get("fits") === undefined);
    const figures = population.table.map((name) => population.get(name)).filter(Boolean);
    const ranked = figures.filter((it) => it.name === view.rank); // in sight, however many choices there are
    const others = figures.filter((it) => it.name !== view.rank);
    columns = innerWidth < 640 || population.kind === "comparison" ? [...figures, ...choices] : [...ranked, ...choices, ...others];
    head.replaceChildren(
      h("th", { scope: "col", class: "place" }, "#"),
      ...columns.map((it) => {
        if (it.isChoice || !it.isDrawn) return h("th", { scope: "col", title: it.about || it.title, class: it.isChoice && !it.numbers ? "word" : "" }, it.short || it.title);
        const ranked = it.name === view.rank;
        const direction = ranked ? (it.larger ? "descending" : "ascending") : null;
        const sort = h("button", { type: "button", class: "sort", title: `${it.about || it.title}; rank by it`, onclick: () => { view.setRank(it.name); } }, it.short || it.title, ranked ? h("span", { "aria-hidden": "true" }, it.larger ? " ↓" : " ↑") : null);
        return h("th", { scope: "col", "aria-sort": direction }, sort);
      }),
    );
  }

  function draw() {
    heads();
    const rank = population.get(view.rank);
    const rows = filters.best(rank, shown);
    const held = document.activeElement && body.contains(document.activeElement) ? document.activeElement.dataset.row : null;
    const scale = new Map(columns.filter((it) => population.bands[it.name]).map((it) => [it.name, reach(it, rows)]));
    body.replaceChildren(...rows.map((row, at) => line(row, at, scale)));
    if (!rows.length) body.append(h("tr", {}, h("td", { colspan: columns.length + 1, class: "nothing" }, `No ${population.one} passes these filters.`)));
    more.textContent = `Show ${Math.min(STEP, filters.count - rows.length)} more`;
    more.hidden = filters.count <= rows.length || !rows.length;
    note.textContent = rows.some((row) => population.exactAt(row) < 0) ? "≈ is drawn in levels: the exact number is not in this page." : "";
    note.hidden = !note.textContent;
    mark();
    if (held !== null) body.querySelector(`[data-row="${held}"]`)?.focus();
  }

  function reach(column, rows) {
    const ends = population.bands[column.name].map((name) => population.get(name));
    const lows = rows.map((row) => (ends[0] ? ends[0].value(row) : column.value(row)));
    const highs = rows.map((row) => (ends[1] ? ends[1].value(row) : column.value(row)));
    const all = [...lows, ...highs].filter(Number.isFinite);
    return all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
  }

  function line(row, at, scale) {
    const cells = columns.map((it) => {
      if (it.isChoice) return h("td", { class: it.numbers ? "" : "word" }, it.text(row));
      return h("td", { class: it.name === view.rank ? "ranked" : "" }, it.text(row), scale.has(it.name) ? range(it, row, scale.get(it.name)) : null);
    });
    const select = () => view.select(row);
    return h("tr", { "data-row": row, tabindex: at ? "-1" : "0", onclick: select, onkeydown: (event) => keys(event, row) }, h("th", { scope: "row", class: "place" }, String(at + 1)), cells);
  }

  // The 10 to 90 % band as a bar, on one scale for all rows.
  function range(column, row, [low, high]) {
    const ends = population.bands[column.name].map((name) => population.get(name));
    if (!ends[0] || !ends[1]) return null;
    const [from, to, at] = [ends[0].value(row), ends[1].value(row), column.value(row)];
    if (![from, to].every(Number.isFinite)) return null;
    const share = (value) => `${(100 * (value - low)) / (high - low || 1)}%`;
    const words = `10 to 90 %: ${column.written(from, 3)} to ${column.written(to, 3)}`;
    return h("span", { class: "range", role: "img", "aria-label": words, title: words }, h("span", { class: "range-bar", style: { left: share(from), right: `calc(100% - ${share(to)})` } }), h("span", { class: "range-dot", style: { left: share(at) } }));
  }

  function keys(event, row) {
    const line = event.currentTarget;
    const next = { ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling, Home: body.firstElementChild, End: body.lastElementChild }[event.key];
    if (next) {
      event.preventDefault();
      line.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      view.select(row, true);
    }
  }

  function mark() {
    for (const it of body.children) {
      const on = it.dataset.row === String(view.row);
      it.classList.toggle("selected", on);
      if (it.dataset.row !== undefined) it.setAttribute("aria-selected", String(on));
    }
  }

  filters.onChange(draw);
  view.onRank(draw);
  view.onSelect(mark);
  draw();
  const title = h("h2", {}, population.heading);
  const help = h("p", { class: "note" }, `Choose one to see where its time and memory go. Headings rank; arrow keys and Enter work, too.`);
  return h("section", { class: "card", "aria-label": population.heading }, h("header", {}, title, help), h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `${population.heading}, table` }, table), note, more);
}
