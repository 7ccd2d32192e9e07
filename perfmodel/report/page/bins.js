// Columns cut into bins, once for each use: every chart counts in the same way.

import { written } from "./format.js";

export const MOST_BINS = 48;

// Returns { codes, count, log, edges or labels, of(value), place(code) } of a column.
export function binned(column, count = MOST_BINS, log = column.spansDecades) {
  if (column.isChoice) return { codes: column.codes, count: column.labels.length, labels: column.labels, column };
  const key = `${count} ${log}`;
  if (!column.cache.has(key)) column.cache.set(key, cut(column, count, log));
  return column.cache.get(key);
}

function cut(column, count, log) {
  const { values } = column;
  const { low, high, positive } = column.extent;
  const first = log ? Math.log(positive) : low;
  const last = log ? Math.log(high) : high;
  const width = (last - first) / count || 1;
  const codes = new Uint16Array(values.length);
  const top = count - 1;
  const at = (value) => {
    const place = Math.floor(((log ? Math.log(value) : value) - first) / width);
    return place > top ? top : place > 0 ? place : 0;
  };
  if (log) {
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

// How many of some rows are in every bin.
export function counts(bins, rows, length) {
  const found = new Uint32Array(bins.count);
  const { codes } = bins;
  for (let at = 0; at < length; at += 1) found[codes[rows[at]]] += 1;
  return found;
}

// The same of two columns: at [a * b.count + b].
export function countsOfPairs(a, b, rows, length) {
  const found = new Uint32Array(a.count * b.count);
  const [first, second, width] = [a.codes, b.codes, b.count];
  for (let at = 0; at < length; at += 1) {
    const row = rows[at];
    found[first[row] * width + second[row]] += 1;
  }
  return found;
}
