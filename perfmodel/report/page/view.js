// What the charts of one population share: filters, the chosen row, the figure that ranks.

import { Filters } from "./filters.js";
import { whole } from "./format.js";

const PAUSE = 150; // ms

export class View {
  constructor(population, changed) {
    this.population = population;
    this.filters = new Filters(population);
    this.rank = population.rank;
    this.row = null;
    this.listeners = { select: [], rank: [] };
    this.places = new Map(); // draw -> where, and whether it is near what is seen
    this.waiting = new Set();
    this.tellPage = changed;
    this.reset();
    this.usualRows = this.filters.rows.slice(0, this.filters.count);
    this.filters.onChange(() => {
      if (this.row === null || !this.filters.passes(this.row)) this.select(this.first());
      this.tellPage();
    });
    this.row = this.first();
  }

  // What fits in memory is what one looks for; the rest is one press away.
  get usual() {
    const fits = this.population.get("fits");
    const some = fits && fits.labels.length > 1 && fits.labels.includes("no");
    return new Map(some ? [["fits", { allowed: new Set(["tight", "yes"].map((it) => fits.labels.indexOf(it)).filter((it) => it >= 0)) }]] : []);
  }

  reset() {
    this.filters.reset(this.usual);
  }

  // How far a figure reaches among the rows that the usual filters let pass.
  usualExtent(column) {
    return this.filters.extentOf.call({ rows: this.usualRows, count: this.usualRows.length }, column);
  }

  changed() {
    const { active } = this.filters;
    return active.size !== this.usual.size || [...active].some(([name, it]) => !this.usual.has(name) || it.allowed?.size !== 1 || !it.allowed.has(this.population.get(name).labels.indexOf("yes")));
  }

  first() {
    const [row] = this.filters.best(this.population.get(this.rank), 1);
    return row ?? null;
  }

  // reveal: bring what is shown of the row into sight, where the page is one column.
  select(row, reveal = false) {
    this.row = row;
    for (const listener of this.listeners.select) listener();
    if (reveal && innerWidth < 1180) this.detail?.scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth", block: "start" });
    this.tellPage();
  }

  setRank(name) {
    this.rank = name;
    for (const listener of this.listeners.rank) listener();
    this.tellPage();
  }

  onSelect(listener) {
    this.listeners.select.push(listener);
  }

  onRank(listener) {
    this.listeners.rank.push(listener);
  }

  // Draw in a frame: when it comes into sight, when its width changes, and where later() says so.
  onShow(draw, frame) {
    const place = { draw, near: false, stale: true, width: 0 };
    this.places.set(draw, place);
    new ResizeObserver(() => {
      if (!frame.clientWidth || frame.clientWidth === place.width) return;
      if (place.width) this.later(draw);
      place.width = frame.clientWidth;
    }).observe(frame);
    new IntersectionObserver(
      ([entry]) => {
        place.near = entry.isIntersecting;
        if (place.near && place.stale) this.later(draw);
      },
      { rootMargin: "120px" },
    ).observe(frame.closest("section") || frame);
  }

  // Draw all again, as when the theme changes or the page is printed.
  show(all = false) {
    for (const place of this.places.values()) {
      if (all) this.drawPlace(place);
      else this.later(place.draw);
    }
  }

  drawPlace(place) {
    place.stale = false;
    place.draw();
  }

  // Once for all that changes before the next frame, and only what is near: the rest when there is time.
  later(draw) {
    const place = this.places.get(draw);
    if (place) {
      place.stale = true;
      if (!place.near) {
        this.whenIdle();
        return;
      }
    }
    if (!this.waiting.size) requestAnimationFrame(() => {
      const due = [...this.waiting];
      this.waiting.clear();
      const started = performance.now();
      for (const it of due) {
        const known = this.places.get(it);
        if (known) this.drawPlace(known);
        else it();
      }
      this.drawn = performance.now() - started;
    });
    this.waiting.add(draw);
  }

  // One chart at a time, a moment after the last change.
  whenIdle() {
    clearTimeout(this.idle);
    this.idle = setTimeout(() => {
      (globalThis.requestIdleCallback || setTimeout)(() => {
        const stale = [...this.places.values()].find((it) => it.stale && !it.near && it.width);
        if (!stale) return;
        this.drawPlace(stale);
        this.whenIdle();
      });
    }, PAUSE);
  }

  rowPlace() {
    const { population, filters } = this;
    const rank = population.get(this.rank);
    const value = rank.values[this.row];
    let ahead = 0;
    for (let at = 0; at < filters.count; at += 1) {
      const other = rank.values[filters.rows[at]];
      if (rank.larger ? other > value : other < value) ahead += 1;
    }
    return filters.passes(this.row) ? `${whole(ahead + 1)} of ${whole(filters.count)} by ${rank.short || rank.title}` : "";
  }

  get state() {
    const filtered = [...this.filters.active].map(([name, it]) => [name, it.allowed ? [...it.allowed].map((code) => this.population.get(name).labels[code]) : [it.low, it.high].map((end) => (Number.isFinite(end) ? end : null))]);
    return { rank: this.rank, row: this.row, filters: filtered };
  }

  restore(state) {
    const wanted = new Map();
    for (const [name, it] of state.filters || []) {
      const column = this.population.get(name);
      if (!column) continue;
      if (column.isChoice) {
        const allowed = new Set(it.map((label) => column.labels.indexOf(label)).filter((code) => code >= 0));
        if (allowed.size) wanted.set(name, { allowed });
      } else if (column.isDrawn) wanted.set(name, { low: it[0] ?? -Infinity, high: it[1] ?? Infinity });
    }
    if (this.population.get(state.rank)?.isDrawn) this.setRank(state.rank);
    this.filters.reset(wanted);
    if (Number.isInteger(state.row) && state.row >= 0 && state.row < this.population.rows) this.select(state.row);
  }
}
