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
  // values: of every row; without them the exact rows alone have some.
  constructor(about, population, values, exact) {
    Object.assign(this, about, { population, values, exact, isChoice: false });
    this.cache = new Map();
  }

  value(row) {
    const at = this.population.exactAt(row);
    if (at >= 0 && this.exact) return this.exact[at];
    return this.values ? this.values[row] : NaN;
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

export class Population {
  static async from(found) {
    const it = new Population();
    Object.assign(it, found);
    const exactRows = found.exact.rows && (await unpack(found.exact.rows));
    if (exactRows) {
      it.exactPlaces = new Int32Array(found.rows).fill(-1);
      exactRows.forEach((row, at) => (it.exactPlaces[row] = at));
    }
    const columns = await Promise.all(
      found.columns.map(async (about) => [
        about,
        about.data && (await unpack(about.data)),
        about.levels && (await unpack(about.levels)),
        about.ratio && (await unpack(about.ratio.codes)),
        found.exact.columns[about.name] && (await unpack(found.exact.columns[about.name])),
      ]),
    );
    it.columns = new Map();
    for (const [about, data, levels, factors, exact] of columns) {
      if (about.role === "choice") {
        it.columns.set(about.name, new Choice(about, data));
        continue;
      }
      let values = exactRows ? null : exact;
      if (levels) {
        const table = levelValues(about.levels);
        values = new Float32Array(found.rows);
        for (let row = 0; row < found.rows; row += 1) values[row] = table[levels[row]];
      }
      if (factors) {
        const of = it.columns.get(about.ratio.of).values;
        const { power, factors: sizes } = about.ratio;
        values = new Float32Array(found.rows);
        for (let row = 0; row < found.rows; row += 1) {
          values[row] = power > 0 ? sizes[factors[row]] * of[row] : sizes[factors[row]] / of[row];
        }
      }
      if (values && exactRows && exact) exactRows.forEach((row, at) => (values[row] = exact[at]));
      const figure = new Figure(about, it, values, exact);
      if (levels) figure.levels = { codes: levels, table: levelValues(about.levels), exactRows: exactRows || [] };
      it.columns.set(about.name, figure);
    }
    it.isExact = !exactRows;
    return it;
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
    return [...this.columns.values()].filter((it) => !it.isChoice && it.values);
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
