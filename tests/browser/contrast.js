// Texts whose contrast with what lies behind them is below AA (WCAG 2.2, 1.4.3), and how many there are.
() => {
  const parse = (text) => {
    const mixed = text.startsWith("color(srgb");
    const found = text.match(/[\d.]+/g).map(Number);
    const [r, g, b] = mixed ? found.slice(0, 3).map((it) => 255 * it) : found;
    return { r, g, b, a: found[3] ?? 1 };
  };
  const over = (top, under) => ({
    r: top.r * top.a + under.r * (1 - top.a), g: top.g * top.a + under.g * (1 - top.a),
    b: top.b * top.a + under.b * (1 - top.a), a: 1 });
  const light = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((it) => it / 255).map((it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z; };
  const behind = (node) => {
    const layers = [];
    for (let it = node; it; it = it.parentElement) layers.push(parse(getComputedStyle(it).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), { r: 255, g: 255, b: 255, a: 1 }); };
  const poor = [];
  const walker = document.createTreeWalker(document.querySelector("#page"), NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    const box = node.getBoundingClientRect();
    if (!walker.currentNode.textContent.trim() || !box.width || node.closest(".sr, [hidden], option, noscript, title")) continue;
    const style = getComputedStyle(node);
    if (style.visibility === "hidden") continue;
    const svg = node.closest("svg");
    const ink = parse(svg ? style.fill : style.color);
    const paper = behind(svg ? svg.parentElement : node);
    const [a, b] = [light(over(ink, paper)), light(paper)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    seen += 1;
    if (ratio < (large ? 3 : 4.5)) poor.push([walker.currentNode.textContent.trim().slice(0, 30), node.className.baseVal ?? node.className, ratio.toFixed(2)]);
  }
  return [seen, poor];
}
