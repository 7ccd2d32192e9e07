// Colours of the page's own theme, for what is drawn on a canvas; of numbers, viridis.

const cache = { key: "", found: new Map() };

// What a name of the theme, as "--accent", stands for; other colours as they are.
export function inked(name) {
  if (!name?.startsWith("--")) return name;
  const style = getComputedStyle(document.documentElement);
  const key = style.getPropertyValue("--ink") + style.getPropertyValue("--card");
  if (cache.key !== key) Object.assign(cache, { key, found: new Map() });
  if (!cache.found.has(name)) cache.found.set(name, style.getPropertyValue(name).trim());
  return cache.found.get(name);
}

export const GROUPS = Array.from({ length: 7 }, (_, at) => `--group-${at + 1}`);

// At equal distances, as perfmodel.base.figures has them.
const SHADES = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6dcd59", "#b4de2c", "#fde725"].map(parts);

function parts(colour) {
  return [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
}

export function viridis(share) {
  const at = Math.min(Math.max(share, 0), 1) * (SHADES.length - 1);
  const low = Math.min(Math.floor(at), SHADES.length - 2);
  const mixed = SHADES[low].map((it, part) => Math.round(it + (at - low) * (SHADES[low + 1][part] - it)));
  return `#${mixed.map((it) => it.toString(16).padStart(2, "0")).join("")}`;
}

// Pale to deep on a light page, deep to bright on a dark one.
export function density(share) {
  return viridis(inked("--dark") === "1" ? 0.12 + 0.88 * share : 0.94 - 0.9 * share);
}

// The family of a part of a whole: what its time or memory goes to.
export function family(name) {
  if (/^(projected_)?memory_(?!time)|_bytes$/.test(name)) return "memory";
  if (/exposed|communication|network_time|transfer_time|chip_time/.test(name)) return "communication";
  if (/bubble|host_time|memory_time/.test(name)) return "waiting";
  return "compute";
}

export const FAMILIES = [
  ["compute", "compute"],
  ["communication", "communication that shows"],
  ["waiting", "waiting"],
];

// Black or white, whichever is easier to read on a colour like #0a5ca8.
export function readable(colour) {
  const [r, g, b] = parts(colour).map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}
