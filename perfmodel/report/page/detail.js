// The chosen row: what it is, its figures with their bands, where its time and memory go.

import { family } from "./colours.js";
import { h } from "./dom.js";

export function detail(view) {
  const { population } = view;
  const body = h("div", { class: "detail" });
  const section = h("aside", { class: "card chosen-card", tabindex: "-1", "aria-label": `Chosen ${population.one}` }, body);

  function draw() {
    const { row } = view;
    if (row === null) {
      body.replaceChildren(h("h2", {}, `Chosen ${population.one}`), h("p", { class: "soft" }, `None passes the filters.`));
      return;
    }
    const exact = population.exactAt(row) >= 0;
    const command = population.commandOf(row);
    const parts = [
      h("header", {}, h("h2", {}, `Chosen ${population.one}`), view.rowPlace() ? h("span", { class: "badge" }, view.rowPlace()) : null),
      figures(row),
      h("dl", { class: "facts" }, population.described(row).map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text)))),
      ...(exact ? population.waterfalls.map((it) => waterfall(row, it)) : [h("p", { class: "note" }, `This ${population.one} is drawn in levels: its figures are near what stands here, and its parts are not in this page. The command below gives them.`)]),
      command ? commandLine(command) : null,
    ];
    body.replaceChildren(...parts.filter(Boolean));
  }

  function figures(row) {
    const shown = population.table.map((name) => population.get(name)).filter((it) => it && !Number.isNaN(it.value(row))).slice(0, 6);
    return h("div", { class: "tiles compact" }, shown.map((it) => h("div", { class: "tile" }, h("div", { class: "tile-name" }, it.short || it.title), h("div", { class: "tile-value" }, it.text(row)), bandWords(it, row))));
  }

  function bandWords(column, row) {
    const names = population.bands[column.name];
    if (!names) return null;
    const [low, high] = names.map((name) => (name ? population.get(name)?.value(row) : NaN));
    if (Number.isFinite(low) && Number.isFinite(high)) return h("div", { class: "tile-note" }, `${column.written(low, 3).replace(/ \D+$/, "")}–${column.written(high, 3)}, 10–90 %`);
    return Number.isFinite(high) ? h("div", { class: "tile-note" }, `90 %: up to ${column.written(high, 3)}`) : null;
  }

  function waterfall(row, about) {
    const column = population.get(about.whole);
    const whole = column.value(row);
    const parts = about.parts.map((it) => ({ ...it, value: population.get(it.name).value(row) })).filter((it) => it.value > 0);
    if (!parts.length || !Number.isFinite(whole)) return null;
    const limit = limitOf(about.whole, row);
    const names = population.bands[about.whole];
    const [low, high] = (names || []).map((name) => (name ? population.get(name).value(row) : NaN));
    const reach = Math.max(whole, limit || 0, high || 0);
    const share = (value) => `${(100 * value) / reach}%`;
    let start = 0;
    const lines = parts.map((it) => {
      const left = start;
      start += it.value;
      return h("tr", {}, h("th", { scope: "row" }, it.title), h("td", { class: "water" }, h("span", { class: `water-bar part-${family(it.name)}`, style: { left: share(left), width: share(it.value) } })), h("td", {}, column.written(it.value, 3)), h("td", { class: "soft" }, `${((100 * it.value) / whole).toFixed(1)} %`));
    });
    const total = h("tr", { class: "total" }, h("th", { scope: "row" }, column.title),
      h("td", { class: "water" }, h("span", { class: "water-bar part-total", style: { left: "0", width: share(whole) } }), Number.isFinite(high) ? h("span", { class: "water-band", style: { left: share(Number.isFinite(low) ? low : whole), right: `calc(100% - ${share(high)})` } }) : null, limit ? h("span", { class: "water-limit", style: { left: share(limit) } }) : null),
      h("td", {}, column.written(whole, 4)), h("td", { class: "soft" }, "100 %"));
    const words = [];
    if (Number.isFinite(low) && Number.isFinite(high)) words.push(`10 to 90 %: ${column.written(low, 4)} to ${column.written(high, 4)}`);
    else if (Number.isFinite(high)) words.push(`90th percentile: ${column.written(high, 4)}`);
    if (limit) words.push(`the device holds ${column.written(limit)}`);
    return h("div", { class: "waterfall" }, h("h3", {}, about.title), h("table", {}, h("caption", { class: "sr" }, about.title), h("thead", { class: "sr" }, h("tr", {}, ["part", "picture", "amount", "share"].map((it) => h("th", { scope: "col" }, it)))), h("tbody", {}, lines, total)), words.length ? h("p", { class: "note" }, words.join("; ")) : null);
  }

  function limitOf(name, row) {
    const limits = population.limits[name];
    if (!limits) return null;
    const hardware = population.get("hardware")?.text(row) ?? population.common.find((it) => it.name === "hardware")?.value;
    return limits[hardware] || null;
  }

  function commandLine(command) {
    const code = h("code", { tabindex: "0" }, command);
    const copy = h("button", { type: "button", class: "quiet small", onclick: async () => {
      try {
        await navigator.clipboard.writeText(command);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code); // then the keyboard can copy it
        copy.textContent = "Selected";
      }
    } }, "Copy");
    return h("div", { class: "command" }, h("h3", {}, "Project it again"), h("div", { class: "command-line" }, code, copy));
  }

  view.onSelect(draw);
  draw();
  return section;
}
