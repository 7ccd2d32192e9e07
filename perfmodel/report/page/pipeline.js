// The pipeline of one step: every pass of every stage over time.

import { colours } from "./colours.js";
import { behind, choose, h, hideTip, plainTable, sharpen, showTip } from "./dom.js";
import { written } from "./format.js";
import { unpack } from "./unpack.js";

const PASSES = 4; // kinds of passes come first, then what is between them
const LEFT = 58;
const BOTTOM = 26;
const SPANS = [
  { value: "whole", title: "whole step" },
  { value: "first", title: "first quarter" },
  { value: "middle", title: "middle" },
  { value: "last", title: "last quarter" },
];
const ENDS = { whole: [0, 1], first: [0, 0.25], middle: [0.375, 0.625], last: [0.75, 1] };

export function pipeline(view) {
  const { population } = view;
  const rank = population.get(population.rank);
  const rows = Object.keys(population.pictures).sort((a, b) => (rank.larger ? -1 : 1) * (rank.values[a] - rank.values[b]));
  if (!rows.length) return null;
  const canvas = h("canvas", { role: "img" });
  const frame = h("div", { class: "chart" }, canvas);
  const words = h("p", { class: "note" });
  const others = h("div", { class: "presets" });
  const legend = h("div", { class: "legend" });
  const table = behind("Stages as a table", stageTable);
  const state = { span: "whole", picture: null, passes: null, row: null };

  async function read() {
    const picture = population.pictures[String(view.row)];
    state.row = view.row;
    state.picture = picture && !picture.without ? picture : null;
    state.passes = null;
    if (state.picture) {
      const wanted = view.row;
      const names = ["stage", "chunk", "micro_batch", "kind", "start", "end"];
      const found = await Promise.all(names.map((name) => unpack(picture[name])));
      if (wanted !== view.row) return;
      state.passes = Object.fromEntries(names.map((name, at) => [name, found[at]]));
    }
    draw();
  }

  function draw() {
    const { picture, passes } = state;
    const drawn = Boolean(picture && passes);
    frame.hidden = !drawn;
    legend.hidden = !drawn;
    table.node.hidden = !drawn;
    others.replaceChildren(...rows.filter((it) => !population.pictures[it].without).map((it) => h("button", { type: "button", class: "quiet small", "aria-pressed": String(Number(it) === view.row), onclick: () => view.select(Number(it)) }, population.label(Number(it), 7))));
    if (!drawn) {
      const why = population.pictures[String(view.row)]?.without;
      words.textContent = why ? `No picture of the chosen ${population.one}: ${why}. There are pictures of:` : `Pictures are made of the best when the page is written; not of the chosen ${population.one}, but of:`;
      return;
    }
    const width = Math.max(260, frame.clientWidth);
    const each = Math.max(14, Math.min(34, 320 / picture.stages));
    const height = Math.round(each * picture.stages + BOTTOM + 6);
    const theme = colours();
    const context = sharpen(canvas, width, height);
    const [from, to] = ENDS[state.span];
    const scale = d3.scaleLinear().domain([from * picture.makespan, to * picture.makespan]).range([LEFT, width - 10]);
    const [send, data, optimizer, offload, host] = [theme.groups[1], theme.groups[3], theme.groups[4], theme.groups[5], theme.soft];
    const fills = [theme.forward, theme.backward, theme.backward, theme.weights, send, data, optimizer, offload, host];
    context.fillStyle = theme.faint;
    context.globalAlpha = 0.35;
    for (let stage = 0; stage < picture.stages; stage += 1) context.fillRect(LEFT, stage * each + 3, width - 10 - LEFT, each - 4);
    context.globalAlpha = 1;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "center";
    const step = picture.makespan / 65535;
    for (let at = 0; at < passes.start.length; at += 1) {
      const [left, right] = [scale(passes.start[at] * step), scale(passes.end[at] * step)];
      if (right < LEFT || left > width - 10) continue;
      const [a, b] = [Math.max(left, LEFT), Math.min(right, width - 10)];
      const top = passes.stage[at] * each + 3;
      context.fillStyle = fills[passes.kind[at]];
      const pass = passes.kind[at] < PASSES;
      context.globalAlpha = pass && picture.chunks > 1 ? 1 - 0.55 * (passes.chunk[at] / picture.chunks) : 1;
      context.fillRect(a, top, Math.max(0.6, b - a - (b - a > 3 ? 0.8 : 0)), each - 4);
      context.globalAlpha = 1;
      if (pass && b - a > 16 && each >= 16) {
        context.fillStyle = theme.card;
        if (picture.chunks > 1 && passes.chunk[at] / picture.chunks > 0.45) context.fillStyle = theme.ink;
        context.fillText(String(passes.micro_batch[at] + 1), (a + b) / 2, top + (each - 4) / 2);
      }
    }
    context.fillStyle = theme.soft;
    context.textAlign = "right";
    for (let stage = 0; stage < picture.stages; stage += 1) if (each >= 14) context.fillText(`stage ${stage}`, LEFT - 8, stage * each + 1 + each / 2);
    context.textAlign = "center";
    const base = picture.stages * each + 6;
    scale.ticks(width < 480 ? 4 : 8).forEach((value) => {
      context.fillRect(scale(value), base - 2, 1, 4);
      context.fillText(written("time", value, 3), Math.min(scale(value), width - 24), base + 12);
    });
    canvas.setAttribute("aria-label", `Pipeline of one step: ${picture.stages} stages, ${passes.kind.filter((it) => it < PASSES).length} passes in ${written("time", picture.makespan)}; the table below has every stage`);
    words.textContent = `${picture.schedule}; ${picture.micro_batches} micro-batches${picture.chunks > 1 ? `, ${picture.chunks} chunks of a stage (later ones paler)` : ""}. From the begin of the step to its end, ${written("time", picture.makespan)}; gaps are waiting.`;
    const kinds = [...new Set(passes.kind)].sort((a, b) => a - b);
    legend.replaceChildren(...kinds.map((kind) => h("span", { class: "key" }, h("span", { class: "key-dot square", style: { background: fills[kind] } }), picture.kinds[kind])));
    table.refresh();
  }

  canvas.addEventListener("pointermove", (event) => {
    const { picture, passes } = state;
    if (!picture || !passes) return;
    const box = canvas.getBoundingClientRect();
    const each = Math.max(14, Math.min(34, 320 / picture.stages));
    const stage = Math.floor((event.clientY - box.top) / each);
    const [from, to] = ENDS[state.span];
    const share = from + ((event.clientX - box.left - LEFT) / (box.width - 10 - LEFT)) * (to - from);
    const time = share * 65535;
    for (let at = 0; at < passes.start.length; at += 1) {
      if (passes.stage[at] !== stage || passes.start[at] > time || passes.end[at] < time) continue;
      const length = ((passes.end[at] - passes.start[at]) / 65535) * picture.makespan;
      const pass = passes.kind[at] < PASSES;
      showTip([`${picture.kinds[passes.kind[at]]}${pass ? `, micro-batch ${passes.micro_batch[at] + 1}` : ""}`, `stage ${stage}${pass && picture.chunks > 1 ? `, chunk ${passes.chunk[at] + 1}` : ""}`, `${written("time", length)} from ${written("time", (passes.start[at] / 65535) * picture.makespan)}`], event.clientX, event.clientY);
      return;
    }
    hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);

  function stageTable() {
    const { picture } = state;
    if (!picture) return h("p", {}, "");
    return plainTable(["stage", "work", "communication that shows", "waiting", "share"], picture.waiting.map((it, stage) => [String(stage), written("time", picture.work[stage]), written("time", picture.communication[stage]), written("time", it), `${((100 * it) / picture.makespan).toFixed(1)} %`]));
  }

  view.onShow(() => (state.row === view.row ? draw() : read()), frame);
  view.onSelect(read);
  const controls = h("div", { class: "controls" }, choose("Show", SPANS, state.span, (value) => {
    state.span = value;
    draw();
  }));
  return h("section", { class: "card", "aria-label": "Pipeline of one step" }, h("header", {}, h("h2", {}, "Pipeline of one step"), controls), frame, legend, words, others, table.node);
}
