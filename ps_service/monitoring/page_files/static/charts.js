// The charts: lines drawn by uPlot, some with the range of their values, a legend with numbers, marks of events, and the
// keyboard.

import { clock, span } from "./formats.js";

const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [12, 4], [3, 6]];
export const COLOURS = 6;
const FEW = 30; // so few points of a line are drawn as points, too
const LATE_SECONDS = 4; // a value of now may be so old; an older one is told with its age
const WHOLE = Array.from({ length: 36 }, (_, power) => [1, 2, 5][power % 3] * 10 ** Math.floor(power / 3)); // of versions
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power); // so that bytes have round numbers

// What stands on the horizontal axis, unless it is something else.
const TIME = { time: true, text: clock, axis: clock };

function isPower(value) {
  const power = Math.log10(value);
  return Math.abs(power - Math.round(power)) < 1e-9;
}

// The place of a line among the colours and dashes.
function colourOf(line, index) {
  return (line.colour ?? index) % COLOURS;
}

// The ranges of lines: between the highest and the lowest values, which follow all lines.
function bandsOf(series) {
  let next = series.length + 1;
  return series.flatMap((each, index) => {
    if (!each.low) return [];
    next += 2;
    return [{ series: [next - 2, next - 1], fill: faint(colour(`--series-${colourOf(each, index)}`)) }];
  });
}

// The range of an axis that fits its values. Those that are all the same are in the middle.
function around(low, high) {
  if (low === null || low === undefined) return [0, 1];
  if (low < high) return uPlot.rangeNum(low, high, 0.08, true);
  const space = Math.abs(low) / 10 || 1;
  return [low - space, high + space];
}

function faint(hex) {
  return `${hex}2e`;
}

// Whether a line has few points; those without a value for it do not count.
function isShort(uplot, series, from, to) {
  let number = 0;
  for (let index = from; index <= to && number <= FEW; index += 1) number += Number.isFinite(uplot.data[series][index]);
  return number <= FEW;
}

// The points between two gaps, which no line shows. What has no value of a line is not defined, and no gap.
function alone(uplot, series, isShown) {
  if (isShown) return null;
  const values = uplot.data[series];
  const known = [...values.keys()].filter((index) => values[index] !== undefined);
  const isGap = (place) => (values[known[place]] ?? null) === null;
  return known.filter((_, place) => !isGap(place) && isGap(place - 1) && isGap(place + 1));
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export class Chart {
  // A chart that `fits` has no zero, unless there is one.
  constructor(root, { format, axis = format, minimum = 1, log = false, binary = false, fits = false, x = TIME, height = 190 }) {
    this.root = root;
    this.format = format;
    this.axis = axis;
    this.minimum = minimum;
    this.log = log;
    this.binary = binary;
    this.fits = fits;
    this.x = x;
    this.height = height;
    this.plot = root.querySelector(".plot");
    this.legend = root.querySelector(".legend");
    this.title = root.querySelector("h3").textContent;
    this.labels = null;
    this.uplot = null;
    this.data = [[]];
    this.marks = [];
    this.at = null; // the index that the cursor is at; null: now
    new ResizeObserver(() => this.#resize()).observe(this.plot);
    this.plot.addEventListener("keydown", (event) => this.#key(event));
    this.plot.addEventListener("blur", () => this.#move(null));
  }

  show(xs, series, marks) {
    const labels = series.map((each) => each.label).join("\n");
    this.marks = marks;
    const ranges = series.filter((each) => each.low);
    this.data = [xs, ...series.map((each) => each.values), ...ranges.flatMap((each) => [each.high, each.low])];
    this.tellers = series.map((each) => each.told);
    if (labels !== this.labels || !this.uplot) {
      this.labels = labels;
      this.#build(series);
    } else {
      this.uplot.setData(this.data);
    }
    if (this.at !== null) this.#place();
    this.#tell();
  }

  // Colours have changed.
  redraw() {
    this.labels = null;
    if (this.uplot) this.uplot.destroy();
    this.uplot = null;
  }

  #build(series) {
    this.uplot?.destroy();
    this.legend.replaceChildren();
    this.values = series.map((each, index) => {
      const item = document.createElement("li");
      const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      line.setAttribute("viewBox", "0 0 18 4");
      line.setAttribute("aria-hidden", "true");
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", "M0 2h18");
      path.setAttribute("class", `stroke-${colourOf(each, index)}`);
      path.setAttribute("stroke-dasharray", DASHES[colourOf(each, index)].join(" "));
      line.append(path);
      const label = document.createElement("span");
      label.textContent = label.title = each.label;
      const value = document.createElement("b");
      const detail = document.createElement("small");
      item.append(line, label, value, ...(each.told ? [detail] : []));
      this.legend.append(item);
      return { value, detail };
    });
    const filter = this.log ? { filter: (_, splits) => splits.map((each) => (isPower(each) ? each : null)) } : {};
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1, ...filter }, ticks: { show: false },
      font: "11px system-ui, sans-serif" };
    this.uplot = new uPlot({
      width: Math.max(this.plot.clientWidth, 200),
      height: this.height,
      legend: { show: false },
      padding: [12, 8, 0, 0],
      cursor: { drag: { setScale: false, x: false, y: false }, points: { size: 6 }, y: false },
      scales: {
        x: this.x.time ? { time: true } : { time: false, range: (_, low, high) => (low < high ? [low, high] : [(low ?? 0) - 1, (high ?? 0) + 1]) },
        y: this.#scale(),
      },
      axes: [
        { ...axis, space: 70, size: 30, values: (_, splits) => splits.map(this.x.axis), ...(this.x.time ? {} : { incrs: WHOLE }) },
        { ...axis, size: 62, ...(this.fits ? { space: 24 } : {}), ...(this.binary ? { incrs: POWERS } : {}), values: (_, splits) => splits.map((each) => (each === null ? "" : this.axis(each))) },
      ],
      series: [
        {},
        ...series.map((each, index) => ({
          label: each.label,
          stroke: colour(`--series-${colourOf(each, index)}`),
          width: 1.75,
          dash: DASHES[colourOf(each, index)],
          points: each.low ? { size: 5, show: isShort, filter: alone } : { show: false },
          spanGaps: false,
        })),
        ...series.filter((each) => each.low).flatMap(() => [1, 2].map(() => ({ width: 0, points: { show: false }, spanGaps: false }))),
      ],
      bands: bandsOf(series),
      hooks: {
        drawClear: [(uplot) => this.#drawMarks(uplot)],
        setCursor: [(uplot) => {
          if (this.keyed) return;
          this.at = uplot.cursor.left >= 0 ? (uplot.cursor.idx ?? null) : null;
          this.#tell();
        }],
      },
    }, this.data, this.plot);
  }

  #scale() {
    if (this.log) return { distr: 3, log: 10, range: (_, low, high) => uPlot.rangeLog(low ?? 1e-4, high ?? 1, 10, true) };
    if (this.fits) return { range: (_, low, high) => around(low, high) };
    return { range: (_, low, high) => [0, Math.max((high ?? 0) * 1.1, this.minimum)] };
  }

  #drawMarks(uplot) {
    const { ctx, bbox } = uplot;
    const seen = new Set();
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    for (const mark of this.marks) {
      const x = Math.round(uplot.valToPos(mark.time, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width || seen.has(`${x} ${mark.kind}`)) continue;
      seen.add(`${x} ${mark.kind}`);
      ctx.strokeStyle = ctx.fillStyle = colour(`--mark-${mark.kind}`);
      ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.beginPath();
      ctx.arc(x, bbox.top - 4 * devicePixelRatio, 3 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.restore();
  }

  #resize() {
    if (this.uplot && this.plot.clientWidth) this.uplot.setSize({ width: this.plot.clientWidth, height: this.height });
  }

  #key(event) {
    const last = this.data[0].length - 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    if (event.key in steps) this.#move(Math.min(Math.max((this.at ?? last) + steps[event.key], 0), last));
    else if (event.key === "Home") this.#move(0);
    else if (event.key === "End") this.#move(last);
    else if (event.key === "Escape") this.#move(null);
    else return;
    event.preventDefault();
  }

  #move(index) {
    this.at = index;
    this.#place();
    this.#tell();
    if (index !== null) this.announce?.(`${this.x.text(this.data[0][index])}: ${this.#summary(index)}`);
  }

  #place() {
    if (!this.uplot) return;
    this.keyed = true;
    const left = this.at === null ? -10 : this.uplot.valToPos(this.data[0][this.at], "x");
    this.uplot.setCursor({ left, top: 0 });
    this.keyed = false;
  }

  #summary(index) {
    const labels = this.labels ? this.labels.split("\n") : [];
    const parts = labels.map((label, number) => {
      const { value, detail } = this.#textAt(number + 1, index);
      return `${label} ${value}${detail ? `, ${detail}` : ""}`;
    });
    return parts.join("; ") || "no values";
  }

  // Of now: the latest value that has come.
  #textAt(series, index) {
    const teller = this.tellers[series - 1];
    if (teller) return teller(this.at === null ? null : this.data[0][index]);
    const values = this.data[series] ?? [];
    let found = index;
    while (this.at === null && found > 0 && (values[found] ?? null) === null) found -= 1;
    const value = values[found] ?? null;
    const age = this.data[0][index] - this.data[0][found];
    return { value: value !== null && age >= LATE_SECONDS ? `${this.format(value)}, ${span(age)} ago` : this.format(value), detail: "" };
  }

  #tell() {
    const index = this.at ?? this.data[0].length - 1;
    this.values?.forEach((item, number) => {
      const { value, detail } = this.#textAt(number + 1, index);
      item.value.textContent = value;
      item.detail.textContent = detail;
    });
    this.plot.setAttribute("aria-label", `${this.title}, ${this.at === null ? "now" : this.x.text(this.data[0][index])}: ${this.#summary(index)}`);
  }
}
