// Rows that no other one beats in two figures.

import { binned } from "./bins.js";

const LEVELS = 8192;
const FEW = 100_000;

// Rows of the front in the order of x, from the best.
export function frontOf(filters, x, y) {
  const { rows, count } = filters;
  const [first, second] = [x.values, y.values];
  const [signX, signY] = [x.larger ? -1 : 1, y.larger ? -1 : 1];
  let candidates = [];
  if (count <= FEW) {
    candidates = Array.from(rows.subarray(0, count));
  } else {
    // Of many, the best of each of many slices of x: no other one can be on the front.
    const { codes } = binned(x, LEVELS);
    const best = new Int32Array(LEVELS).fill(-1);
    for (let at = 0; at < count; at += 1) {
      const row = rows[at];
      const place = codes[row];
      const other = best[place];
      if (other < 0) best[place] = row;
      else {
        const gain = signY * (second[other] - second[row]);
        if (gain > 0 || (gain === 0 && signX * (first[other] - first[row]) > 0)) best[place] = row;
      }
    }
    candidates = Array.from(best.filter((it) => it >= 0));
  }
  candidates = candidates.filter((row) => Number.isFinite(first[row]) && Number.isFinite(second[row]));
  candidates.sort((a, b) => signX * (first[a] - first[b]) || signY * (second[a] - second[b]) || a - b);
  const front = [];
  let least = Infinity;
  for (const row of candidates) {
    const key = signY * second[row];
    if (key < least) {
      front.push(row);
      least = key;
    }
  }
  return front;
}
