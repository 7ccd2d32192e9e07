// Elements without markup: texts of results only ever become text nodes.

export const SVG = "http://www.w3.org/2000/svg";

export function put(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, it] of Object.entries(value)) node.style.setProperty(key, it);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(2).filter((it) => it !== null && it !== undefined && it !== false));
  return node;
}

export function h(tag, attributes = {}, ...children) {
  return put(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return put(document.createElementNS(SVG, tag), attributes, children);
}

let lastId = 0;

export function newId(word) {
  lastId += 1;
  return `${word}-${lastId}`;
}

// A labelled list to choose from; values are indices of the options.
export function choose(label, options, chosen, onchange) {
  const id = newId("choose");
  const select = h("select", { id, onchange: () => onchange(options[select.selectedIndex].value) });
  options.forEach((it) => select.append(h("option", { value: it.value, selected: it.value === chosen }, it.title)));
  return h("label", { class: "choose", for: id }, h("span", {}, label), select);
}

// A figure's numbers as a table, folded away below it.
export function behind(caption, fill) {
  const body = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption });
  const details = h("details", { class: "behind" }, h("summary", {}, caption), body);
  const refresh = () => details.open && body.replaceChildren(fill());
  details.addEventListener("toggle", refresh);
  addEventListener("beforeprint", refresh);
  return { node: details, refresh };
}

export function plainTable(heads, rows, caption = null) {
  return h(
    "table",
    { class: "plain" },
    caption && h("caption", {}, caption),
    h("thead", {}, h("tr", {}, heads.map((it) => h("th", { scope: "col" }, it)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((it, at) => h(at ? "td" : "th", at ? {} : { scope: "row" }, it))))),
  );
}

// A canvas as sharp as the screen, and empty; returns its context, in CSS pixels. Its size clears it:
// on paper, clearing a rectangle would wipe out what lies below.
export function sharpen(canvas, width, height) {
  const ratio = Math.min(3, globalThis.devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

const tip = { node: null };

export function showTip(lines, x, y) {
  if (!tip.node || !tip.node.isConnected) {
    tip.node = h("div", { class: "tip", "aria-hidden": "true" });
    document.body.append(tip.node);
  }
  tip.node.replaceChildren(...lines.map((it, at) => h("div", { class: at ? "" : "tip-first" }, it)));
  tip.node.hidden = false;
  const box = tip.node.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth - 8 ? x - 14 - box.width : x + 14;
  tip.node.style.left = `${Math.max(8, left)}px`;
  tip.node.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - box.height - 8))}px`;
}

export function hideTip() {
  if (tip.node) tip.node.hidden = true;
}
