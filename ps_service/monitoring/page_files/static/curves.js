// The curves of what trainers report: what is known of them, how they are called, and the lines of their charts.

import { count, NONE, short, value as written } from "./formats.js";

// The order of a point, as watched_curve.py tells it.
const FIRST = 0, LAST = 1, COUNT = 2, NOT_FINITE = 3, MEAN = 4, LOW = 5, HIGH = 6;

// The curves of one owner.
export class Curves {
  constructor() {
    this.byNumber = new Map();
    this.leftOut = 0;
    this.changes = 0;
  }

  take({ fresh, numbers, ended, left_out }) {
    for (const [number, optimizer, title, name, seen, start, points] of fresh) {
      const known = this.byNumber.get(number) ?? { number, optimizer, title, name, seen: 0, points: [], ended: false };
      // A page that has just opened may hear something older.
      if (seen < known.seen || start > known.points.length) continue;
      known.points.splice(start, known.points.length, ...points);
      known.seen = seen;
      this.byNumber.set(number, known);
    }
    for (const number of [...this.byNumber.keys()]) if (!numbers.includes(number)) this.byNumber.delete(number);
    for (const curve of this.byNumber.values()) curve.ended = ended.includes(curve.number);
    this.leftOut = left_out;
    this.changes += 1;
  }
}

// The curves of some owners, those that go on first, each with the label of its line.
export function labelled(owners) {
  const found = owners.flatMap((owner) => [...owner.curves.byNumber.values()].map((curve) => ({ ...curve, owner: owner.facts.name })));
  found.sort((one, other) => one.ended - other.ended || (one.owner < other.owner ? -1 : one.owner > other.owner ? 1 : one.number - other.number));
  const ownersOf = new Map();
  for (const { title, owner } of found) ownersOf.set(title, (ownersOf.get(title) ?? new Set()).add(owner));
  const taken = new Map();
  for (const curve of found) {
    const where = ownersOf.get(curve.title).size > 1 ? [curve.owner] : [];
    const more = [...where, ...(curve.ended ? ["gone"] : [])].join(", ");
    const label = more ? `${curve.title} (${more})` : curve.title;
    // Optimizers that were made anew under the same name.
    const key = `${curve.name}\n${label}`;
    const number = (taken.get(key) ?? 0) + 1;
    taken.set(key, number);
    curve.label = number > 1 ? `${label} ${number}` : label;
  }
  return found;
}

// The points of a line for a chart: one for each version.
export function line(curve) {
  const xs = [], means = [], lows = [], highs = [];
  for (const point of curve.points) {
    const at = xs.length && xs[xs.length - 1] === point[LAST] ? xs.length - 1 : xs.length;
    xs[at] = point[LAST];
    means[at] = point[MEAN];
    lows[at] = point[LOW];
    highs[at] = point[HIGH];
  }
  return [xs, means, lows, highs];
}

// What a chart says of a curve at a version, or now: of the point with that version, or else of the one before.
export function told(curve, version) {
  const { points } = curve;
  let index = points.length - 1;
  if (version !== null) {
    if (!points.length || version < points[0][FIRST]) return { value: NONE, detail: "not begun" };
    const last = points[index][LAST];
    if (version > last) return { value: NONE, detail: `${curve.ended ? "ended" : "is"} at version ${count(last)}` };
    let low = 0;
    while (low < index) {
      const middle = (low + index) >> 1;
      if (points[middle][LAST] >= version) index = middle;
      else low = middle + 1;
    }
  }
  const point = points[index];
  return point ? { value: written(point[MEAN]), detail: detail(point) } : { value: NONE, detail: "" };
}

function detail(point) {
  const versions = point[FIRST] === point[LAST] ? `version ${count(point[LAST])}` : `versions ${count(point[FIRST])} to ${count(point[LAST])}`;
  const limits = point[COUNT] > 1 ? `${short(point[LOW])} to ${short(point[HIGH])}, ` : "";
  const rest = point[NOT_FINITE] ? `, ${count(point[NOT_FINITE])} NaN or infinite` : "";
  return `${limits}${versions}${rest}`;
}

// A row of the table.
export function summary(curve) {
  let reports = 0, notFinite = 0, low = null, high = null, latest = null;
  for (const point of curve.points) {
    reports += point[COUNT];
    notFinite += point[NOT_FINITE];
    if (!point[COUNT]) continue;
    low = low === null ? point[LOW] : Math.min(low, point[LOW]);
    high = high === null ? point[HIGH] : Math.max(high, point[HIGH]);
    latest = point[MEAN];
  }
  const last = curve.points[curve.points.length - 1];
  const { owner, number, name, label } = curve;
  return { owner, number, name, label, latest, low, high, reports, notFinite, version: last ? last[LAST] : null };
}
