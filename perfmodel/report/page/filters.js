// Which rows pass: one bit per filtered column and row, so that a change reads one column only.

const MOST = 31;

export class Filters {
  constructor(population) {
    this.population = population;
    this.failed = new Uint32Array(population.rows);
    this.rows = new Uint32Array(population.rows);
    this.active = new Map(); // name -> { bit, allowed } or { bit, low, high }
    this.listeners = [];
    this.collect();
  }

  // allowed: codes of a choice that pass; low, high: of a figure, ends included; null: all.
  set(name, wanted) {
    const column = this.population.get(name);
    const known = this.active.get(name);
    if (wanted && column.isChoice && wanted.allowed.size >= column.labels.length) wanted = null;
    if (!wanted && !known) return;
    const bit = known ? known.bit : this.freeBit();
    if (bit === null) return;
    if (wanted) this.active.set(name, { bit, ...wanted });
    else this.active.delete(name);
    mark(this.failed, 1 << bit, column, wanted);
    this.collect();
    this.tell();
  }

  reset(wanted = new Map()) {
    for (const name of [...this.active.keys()]) if (!wanted.has(name)) this.quietly(name, null);
    for (const [name, it] of wanted) if (this.population.get(name)) this.quietly(name, it);
    this.collect();
    this.tell();
  }

  quietly(name, wanted) {
    const known = this.active.get(name);
    const bit = known ? known.bit : this.freeBit();
    if (bit === null) return;
    if (wanted) this.active.set(name, { bit, ...wanted });
    else this.active.delete(name);
    mark(this.failed, 1 << bit, this.population.get(name), wanted);
  }

  freeBit() {
    const taken = new Set([...this.active.values()].map((it) => it.bit));
    for (let bit = 0; bit < MOST; bit += 1) if (!taken.has(bit)) return bit;
    return null;
  }

  collect() {
    const { failed, rows } = this;
    let count = 0;
    for (let row = 0; row < failed.length; row += 1) {
      rows[count] = row;
      count += failed[row] === 0 ? 1 : 0;
    }
    this.count = count;
  }

  passes(row) {
    return this.failed[row] === 0;
  }

  // Counts by code of the rows that all filters but the column's own let pass.
  countsOf(name) {
    const column = this.population.get(name);
    const found = new Uint32Array(column.labels.length);
    const own = this.active.get(name);
    const { codes } = column;
    if (!own) {
      for (let at = 0; at < this.count; at += 1) found[codes[this.rows[at]]] += 1;
      return found;
    }
    const others = ~(1 << own.bit);
    for (let row = 0; row < this.failed.length; row += 1) if ((this.failed[row] & others) === 0) found[codes[row]] += 1;
    return found;
  }

  // Lowest and highest of the rows that pass, and the lowest above zero.
  extentOf({ values, extent }) {
    let [low, high, positive] = [Infinity, -Infinity, Infinity];
    for (let at = 0; at < this.count; at += 1) {
      const value = values[this.rows[at]];
      if (value < low && value > -Infinity) low = value;
      if (value > high && value < Infinity) high = value;
      if (value > 0 && value < positive) positive = value;
    }
    return low > high ? extent : { low, high, positive };
  }

  // The rows that come first by a figure, best first.
  best(figure, count, larger = figure.larger) {
    const sign = larger ? 1 : -1;
    const kept = []; // ascending by key
    let least = -Infinity;
    for (let at = 0; at < this.count; at += 1) {
      const row = this.rows[at];
      const key = sign * figure.values[row];
      if (!(key > least) && kept.length >= count) continue;
      if (Number.isNaN(key)) continue;
      let [low, high] = [0, kept.length];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (kept[middle].key < key) low = middle + 1;
        else high = middle;
      }
      kept.splice(low, 0, { row, key });
      if (kept.length > count) kept.shift();
      least = kept[0].key;
    }
    return kept.reverse().map((it) => it.row);
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  tell() {
    for (const listener of this.listeners) listener();
  }
}

function mark(failed, mask, column, wanted) {
  const keep = ~mask;
  if (!wanted) {
    for (let row = 0; row < failed.length; row += 1) failed[row] &= keep;
  } else if (column.isChoice) {
    const { codes } = column;
    const bits = Uint32Array.from(column.labels, (_, code) => (wanted.allowed.has(code) ? 0 : mask));
    for (let row = 0; row < failed.length; row += 1) failed[row] = (failed[row] & keep) | bits[codes[row]];
  } else {
    const { values } = column;
    const { low, high } = wanted;
    for (let row = 0; row < failed.length; row += 1) {
      const value = values[row];
      failed[row] = (failed[row] & keep) | (value >= low && value <= high ? 0 : mask);
    }
  }
}

// What a filter says, in words.
export function spoken(column, wanted) {
  if (column.isChoice) {
    const labels = [...wanted.allowed].sort((a, b) => a - b).map((code) => column.labels[code]);
    const shown = labels.length > 5 ? [...labels.slice(0, 4), `${labels.length - 4} more`] : labels;
    return `${column.title}: ${shown.join(", ") || "none"}`;
  }
  const low = wanted.low > -Infinity ? column.written(wanted.low, 3) : "";
  const high = wanted.high < Infinity ? column.written(wanted.high, 3) : "";
  if (low && high) return `${column.title}: ${low} to ${high}`;
  return low ? `${column.title} ≥ ${low}` : `${column.title} ≤ ${high}`;
}
