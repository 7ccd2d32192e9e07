// The pipeline of one step: every pass of every stage over time, as perfmodel/report/pictures.py describes it.

import { behind, choose, h, hideTip, plainTable, showTip } from "./dom.js";
import { chart, drawPanel, found, keys, ticksOf } from "./figure.js";
import { written } from "./format.js";
import { unpack } from "./unpack.js";

const PACKED = ["at", "start", "length", "texts"];
const SPANS = [
  { value: "whole", title: "whole step", ends: [0, 1] },
  { value: "first", title: "first quarter", ends: [0, 0.25] },
  { value: "middle", title: "middle", ends: [0.375, 0.625] },
  { value: "last", title: "last quarter", ends: [0.75, 1] },
];

export function pipeline(view) {
  const { population } = view;
  const rank = population.get(population.rank);
  const rows = Object.keys(population.pictures).sort((a, b) => (rank.larger ? -1 : 1) * (rank.values[a] - rank.values[b]));
  if (!rows.length) return null;
  const drawing = chart();
  const { canvas, svg, frame } = drawing;
  canvas.removeAttribute("aria-hidden");
  canvas.setAttribute("role", "img");
  const words = h("p", { class: "note" });
  const others = h("div", { class: "presets" });
  const legend = h("div", { class: "legend" });
  const table = behind("Stages as a table", stageTable);
  const state = { span: SPANS[0], picture: null, marks: null, row: null, drawn: null };

  async function read() {
    const picture = population.pictures[String(view.row)];
    Object.assign(state, { row: view.row, picture: picture && !picture.without ? picture : null, marks: null });
    if (state.picture) {
      const wanted = view.row;
      const marks = await Promise.all(picture.panel.marks.map(opened));
      if (wanted !== view.row) return;
      state.marks = marks;
    }
    draw();
  }

  function draw() {
    const { picture, marks } = state;
    const drawn = Boolean(picture && marks);
    for (const node of [frame, legend, table.node]) node.hidden = !drawn;
    others.replaceChildren(...rows.filter((it) => !population.pictures[it].without).map((it) => h("button", { type: "button", class: "quiet small", "aria-pressed": String(Number(it) === view.row), onclick: () => view.select(Number(it)) }, population.label(Number(it), 7))));
    if (!drawn) {
      const why = population.pictures[String(view.row)]?.without;
      words.textContent = why ? `No picture of the chosen ${population.one}: ${why}. There are pictures of:` : `Pictures are made of the best when the page is written; not of the chosen ${population.one}, but of:`;
      return;
    }
    const { x, y } = picture.panel;
    const stages = y.ticks.length;
    const width = Math.max(260, frame.clientWidth);
    const height = Math.round(Math.max(14, Math.min(34, 320 / stages)) * stages + 40);
    const [low, high] = state.span.ends.map((it) => it * x.high);
    const across = { ...x, low, high };
    across.ticks = ticksOf(across, width < 480 ? 4 : 8, (value) => written("time", value, 3));
    state.drawn = drawPanel(drawing, { x: across, y, marks }, width, height);
    const passes = marks.filter((it) => it.texts).reduce((sum, it) => sum + it.at.length, 0);
    canvas.setAttribute("aria-label", `Pipeline of one step: ${stages} stages, ${passes} passes in ${written("time", x.high)}; the table below has every stage`);
    words.textContent = `${picture.schedule}; ${picture.micro_batches} micro-batches${picture.chunks > 1 ? `, ${picture.chunks} chunks of a stage (later ones paler)` : ""}. From the begin of the step to its end, ${written("time", x.high)}; gaps are waiting.`;
    legend.replaceChildren(...keys(marks));
    table.refresh();
  }

  svg.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const hit = state.drawn && found(state.drawn, event.clientX - box.left, event.clientY - box.top);
    if (!hit) {
      hideTip();
      return;
    }
    const { mark, at } = hit;
    const time = (value) => written("time", value);
    showTip([`${mark.label}${mark.texts ? `, micro-batch ${mark.texts[at]}` : ""}`, `stage ${mark.at[at]}${mark.texts && state.picture.chunks > 1 ? `, chunk ${mark.chunk + 1}` : ""}`, `${time(mark.length[at])} from ${time(mark.start[at])}`], event.clientX, event.clientY);
  });
  svg.addEventListener("pointerleave", hideTip);

  function stageTable() {
    const { picture } = state;
    if (!picture) return h("p", {}, "");
    const time = (value) => written("time", value);
    return plainTable(["stage", "work", "communication that shows", "waiting", "share"], picture.waiting.map((it, stage) => [String(stage), time(picture.work[stage]), time(picture.communication[stage]), time(it), `${((100 * it) / picture.panel.x.high).toFixed(1)} %`]));
  }

  view.onShow(() => (state.row === view.row ? draw() : read()), frame);
  view.onSelect(read);
  const controls = h("div", { class: "controls" }, choose("Show", SPANS, state.span.value, (value) => {
    state.span = SPANS.find((it) => it.value === value);
    draw();
  }));
  return h("section", { class: "card", "aria-label": "Pipeline of one step" }, h("header", {}, h("h2", {}, "Pipeline of one step"), controls), frame, legend, words, others, table.node);
}

// A mark with its packed columns as numbers, in SI units.
async function opened(mark) {
  const names = PACKED.filter((name) => mark[name]);
  const columns = await Promise.all(names.map(async (name) => {
    const { unit = 1 } = mark[name];
    const found = await unpack(mark[name]);
    return unit === 1 ? found : Float64Array.from(found, (it) => it * unit);
  }));
  return { ...mark, ...Object.fromEntries(names.map((name, at) => [name, columns[at]])) };
}
