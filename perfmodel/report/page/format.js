// Numbers as people read them: four digits, units that fit.

export const GIB = 2 ** 30;

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function whole(value) {
  return grouped.format(value);
}

export function digits(value, count = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10 ** (count - 1)) return grouped.format(value);
  if (size < 1e-4) return value.toExponential(count - 2);
  return value.toPrecision(count);
}

function time(value, count) {
  const size = Math.abs(value);
  if (size >= 2 * 86400) return `${digits(value / 86400, count)} days`;
  if (size >= 2 * 3600) return `${digits(value / 3600, count)} h`;
  if (size >= 1 || size === 0) return `${digits(value, count)} s`;
  if (size >= 1e-3) return `${digits(value * 1e3, count)} ms`;
  return `${digits(value * 1e6, count)} µs`;
}

function bytes(value, count) {
  const size = Math.abs(value);
  if (size >= 0.1 * GIB || size === 0) return `${digits(value / GIB, size >= 10 * GIB ? Math.min(4, count) : Math.min(3, count))} GiB`;
  if (size >= 2 ** 20) return `${digits(value / 2 ** 20, 3)} MiB`;
  return `${digits(value / 1024, 3)} KiB`;
}

const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"]];

function number(value, count) {
  for (const [factor, prefix] of PREFIXES) {
    if (Math.abs(value) >= factor * 10) return `${digits(value / factor, count)} ${prefix}`;
  }
  return digits(value, count);
}

const FORMS = {
  time,
  bytes,
  number,
  percent: (value, count) => `${Math.abs(value) < 0.0005 && value ? digits(100 * value, 2) : (100 * value).toFixed(count > 3 ? 1 : 0)} %`,
  per_million: (value, count) => `${digits(1e6 * value, count)} USD`,
  money: (value, count) => `${number(value, count)} USD`,
  joule: (value, count) => (Math.abs(value) >= 3.6e9 ? `${digits(value / 3.6e9, count)} MWh` : `${digits(value, count)} J`),
  watt: (value, count) => `${digits(value, count)} W`,
};

// What ticks are multiples of.
export const UNITS = { bytes: GIB, percent: 0.01, per_million: 1e-6 };

export function written(form, value, count = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  return FORMS[form](value, count).replace("-", "−");
}

export function plural(count, one, many) {
  return `${whole(count)} ${count === 1 ? one : many}`;
}
