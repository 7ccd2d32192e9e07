// Colours of the page's own theme, for what is drawn on a canvas.

const CACHE = { key: "", found: null };

export function colours() {
  const style = getComputedStyle(document.documentElement);
  const key = style.getPropertyValue("--ink") + style.getPropertyValue("--card");
  if (CACHE.key !== key) {
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    CACHE.key = key;
    CACHE.found = {
      ink: of("ink"),
      soft: of("soft"),
      line: of("line"),
      card: of("card"),
      accent: of("accent"),
      strong: of("strong"),
      faint: of("faint"),
      groups: Array.from({ length: 7 }, (_, at) => of(`group-${at + 1}`)),
      forward: of("compute"),
      backward: of("second"),
      weights: of("third"),
      dark: of("dark") === "1",
    };
  }
  return CACHE.found;
}

// Pale to deep on a light page, deep to bright on a dark one.
export function density(share) {
  const { dark } = colours();
  return d3.interpolateViridis(dark ? 0.12 + 0.88 * share : 0.94 - 0.9 * share);
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
  const [r, g, b] = [1, 3, 5].map((at) => {
    const share = parseInt(colour.slice(at, at + 2), 16) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}
