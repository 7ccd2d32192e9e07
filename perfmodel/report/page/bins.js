// Columns cut into bins, once for each use: every chart counts in the same way.

import { written } from "./format.js";

export const MOST_BINS = 48;
const DECADES = 30; // a wider range than this factor has bins of equal factors

// Returns { codes, count, labels, edge(code), at(value) } of a column; what lies beyond the extent
// is in the outermost bins.
export function binned(column, count = MOST_BINS, extent = column.extent) {
  if (column.isChoice) return { codes: column.codes, count: column.labels.length, labels: column.labels, column };
  const key = `${count} ${extent.low} ${extent.high}`;
  if (!column.cache.has(key)) column.cache.set(key, cut(column, count, extent));
  return column.cache.get(key);
}

function cut(column, count, { low, high, positive }) {
  const { values } = column;
  const log = low > 0 && high / low > DECADES;
  const first = log ? Math.log(positive) : low;
  const last = log ? Math.log(high) : high;
  const width = (last - first) / count || 1;
  const codes = new Uint16Array(values.length);
  const top = count - 1;
  const at = (value) => {
    const place = Math.floor(((log ? Math.log(value) : value) - first) / width);
    return place > top ? top : place > 0 ? place : 0;
  };
  if (column.levels) {
    // Of each level once; exact numbers one by one.
    const { codes: levels, table, exactRows } = column.levels;
    const places = Uint16Array.from(table, (value) => (Number.isNaN(value) ? 0 : at(value)));
    for (let row = 0; row < levels.length; row += 1) codes[row] = places[levels[row]];
    for (const row of exactRows) codes[row] = at(values[row]);
  } else if (log) {
    const scale = 1 / width;
    for (let row = 0; row < values.length; row += 1) {
      const place = (Math.log(values[row]) - first) * scale;
      codes[row] = place > top ? top : place > 0 ? place : 0;
    }
  } else {
    const scale = 1 / width;
    for (let row = 0; row < values.length; row += 1) {
      const place = (values[row] - first) * scale;
      codes[row] = place > top ? top : place > 0 ? place : 0;
    }
  }
  const edge = (code) => (log ? Math.exp(first + code * width) : first + code * width);
  const labels = () =>
    Array.from({ length: count }, (_, code) => {
      const ends = [edge(code), edge(code + 1)].map((it) => written(column.form, it, 3));
      return `${ends[0].replace(/ \D+$/, "")}–${ends[1]}`;
    });
  return { codes, count, log, at, edge, labels: count <= 32 ? labels() : null, column };
}

// Counts in the cells of a grid, of rows in fine bins: across and up give each bin its cell, or -1.
export function countsInCells(a, b, across, up, width, height, rows, length) {
  const found = new Uint32Array(width * height);
  const [first, second] = [a.codes, b.codes];
  for (let at = 0; at < length; at += 1) {
    const row = rows[at];
    const [x, y] = [across[first[row]], up[second[row]]];
    if (x >= 0 && y >= 0) found[x * height + y] += 1;
  }
  return found;
}

// How many of some rows are in each bin of two columns, at [a * b.count + b]; of all where none are named.
export function countsOfPairs(a, b, rows, length) {
  if (!rows) return countsOfAll(a, b, length);
  const found = new Uint32Array(a.count * b.count);
  const [first, second, width] = [a.codes, b.codes, b.count];
  for (let at = 0; at < length; at += 1) {
    const row = rows[at];
    found[first[row] * width + second[row]] += 1;
  }
  return found;
}

function countsOfAll(a, b, length) {
  const found = new Uint32Array(a.count * b.count);
  const [first, second, width] = [a.codes, b.codes, b.count];
  for (let row = 0; row < length; row += 1) found[first[row] * width + second[row]] += 1;
  return found;
}
