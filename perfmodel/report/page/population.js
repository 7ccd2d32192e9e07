// The rows of one kind of results, in columns.

import { written } from "./format.js";
import { levelValues, unpack } from "./unpack.js";

export const INEXACT = "≈ ";

class Choice {
  constructor(about, codes) {
    Object.assign(this, about, { codes, isChoice: true });
    this.numbers = about.numbers && about.numbers.map((it) => (it === null ? NaN : it));
  }

  text(row) {
    return this.labels[this.codes[row]];
  }
}

class Figure {
  // exact: of the exact rows; levels or ratio: of all, spread out when they are first asked for.
  constructor(about, population, exact, parts) {
    Object.assign(this, about, { population, exact, isChoice: false }, parts);
    this.cache = new Map();
    this.isDrawn = population.isExact || Boolean(this.levels || this.ratio);
  }

  // Of every row; of a figure that is exact only, nothing.
  get values() {
    if (!this.isDrawn) return null;
    if (this.population.isExact) return this.exact;
    if (!this.cache.has("values")) {
      const { exactRows, rows } = this.population;
      const values = this.levels ? lookedUp(this.levels) : multiplied(this.ratio, this.population.get(this.ratio.of).values, rows);
      if (this.exact) exactRows.forEach((row, at) => (values[row] = this.exact[at]));
      this.cache.set("values", values);
    }
    return this.cache.get("values");
  }

  value(row) {
    const at = this.population.exactAt(row);
    if (at >= 0 && this.exact) return this.exact[at];
    return this.isDrawn ? this.values[row] : NaN;
  }

  text(row, count = 4) {
    const value = this.value(row);
    const mark = Number.isNaN(value) || this.population.exactAt(row) >= 0 ? "" : INEXACT;
    return mark + written(this.form, value, count);
  }

  written(value, count = 4) {
    return written(this.form, value, count);
  }

  // Lowest and highest, and the lowest above zero.
  get extent() {
    if (!this.cache.has("extent")) {
      // Levels reach from the lowest number to the highest; zero counts only where there is one.
      const values = this.levels ? this.levels.table.slice(this.levels.codes.includes(1) ? 1 : 2) : this.values;
      let [low, high, positive] = [Infinity, -Infinity, Infinity];
      for (const value of values) {
        if (value < low && value > -Infinity) low = value;
        if (value > high && value < Infinity) high = value;
        if (value > 0 && value < positive) positive = value;
      }
      if (low > high) [low, high] = [0, 1];
      this.cache.set("extent", { low, high, positive });
    }
    return this.cache.get("extent");
  }
}

function lookedUp({ codes, table }) {
  const values = new Float32Array(codes.length);
  for (let row = 0; row < codes.length; row += 1) values[row] = table[codes[row]];
  return values;
}

function multiplied({ codes, power, factors }, of, count) {
  const values = new Float32Array(count);
  if (power > 0) for (let row = 0; row < count; row += 1) values[row] = factors[codes[row]] * of[row];
  else for (let row = 0; row < count; row += 1) values[row] = factors[codes[row]] / of[row];
  return values;
}

export class Population {
  static async from(found) {
    const it = new Population();
    Object.assign(it, found);
    const exactRows = found.exact.rows && (await unpack(found.exact.rows));
    it.isExact = !exactRows;
    it.exactRows = exactRows;
    if (exactRows) {
      it.exactPlaces = new Int32Array(found.rows).fill(-1);
      exactRows.forEach((row, at) => (it.exactPlaces[row] = at));
    }
    const columns = await Promise.all(found.columns.map((about) => it.column(about, found.exact.columns[about.name])));
    it.columns = new Map(columns.map((column) => [column.name, column]));
    return it;
  }

  async column(about, exactly) {
    if (about.role === "choice") return new Choice(about, await unpack(about.data));
    const exact = exactly && (await unpack(exactly));
    const levels = about.levels && { codes: await unpack(about.levels), table: levelValues(about.levels), exactRows: this.exactRows };
    const ratio = about.ratio && { ...about.ratio, codes: await unpack(about.ratio.codes) };
    return new Figure(about, this, exact, { levels, ratio });
  }

  exactAt(row) {
    return this.exactPlaces ? this.exactPlaces[row] : row;
  }

  get(name) {
    return this.columns.get(name);
  }

  get choices() {
    return [...this.columns.values()].filter((it) => it.isChoice);
  }

  // Figures that every row has.
  get figures() {
    return [...this.columns.values()].filter((it) => !it.isChoice && it.isDrawn);
  }

  // What a row is, as [column title, text] of its choices.
  described(row) {
    return this.choices.filter((it) => it.name !== "fits").map((it) => [it.short || it.title, it.text(row)]);
  }

  label(row, most = 6) {
    const parts = this.described(row).slice(0, most);
    return parts.map(([name, text]) => `${name} ${text}`).join(" · ");
  }

  // The command that projects a row again.
  commandOf(row) {
    if (!this.command) return "";
    const parts = [this.command];
    const choices = [...this.common, ...this.choices].filter((it) => it.option);
    const order = ["model", "hardware", "framework", "engine", "devices"];
    const place = (it) => (order.includes(it.name) ? order.indexOf(it.name) : order.length);
    for (const it of choices.sort((a, b) => place(a) - place(b))) {
      let value = it.codes ? it.text(row) : it.value;
      if (value === it.default || value === "–") continue;
      value = { yes: "true", no: "false" }[value] || value;
      if (/^[\d,]+$/.test(value)) value = value.replaceAll(",", "");
      parts.push(`--${it.option} ${/^[\w.@:/-]+$/.test(value) ? value : `'${value.replaceAll("'", "'\\''")}'`}`);
    }
    return parts.join(" ");
  }
}
