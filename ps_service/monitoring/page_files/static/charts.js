// The charts: lines drawn by uPlot, a legend with numbers, marks of events, and the keyboard.

import { clock, span } from "./formats.js";

const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3], [12, 4], [3, 6]];
const HEIGHT = 190;
const LATE_SECONDS = 4; // a value of now may be so old; an older one is told with its age
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power); // so that bytes have round numbers

function isPower(value) {
  const power = Math.log10(value);
  return Math.abs(power - Math.round(power)) < 1e-9;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export class Chart {
  constructor(root, { format, axis = format, minimum = 1, log = false, binary = false }) {
    this.root = root;
    this.format = format;
    this.axis = axis;
    this.minimum = minimum;
    this.log = log;
    this.binary = binary;
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
    this.data = [xs, ...series.map((each) => each.values)];
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
      path.setAttribute("class", `stroke-${index % 6}`);
      path.setAttribute("stroke-dasharray", DASHES[index % 6].join(" "));
      line.append(path);
      const label = document.createElement("span");
      label.textContent = each.label;
      const value = document.createElement("b");
      item.append(line, label, value);
      this.legend.append(item);
      return value;
    });
    const filter = this.log ? { filter: (_, splits) => splits.map((each) => (isPower(each) ? each : null)) } : {};
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1, ...filter }, ticks: { show: false },
      font: "11px system-ui, sans-serif" };
    this.uplot = new uPlot({
      width: Math.max(this.plot.clientWidth, 200),
      height: HEIGHT,
      legend: { show: false },
      padding: [12, 8, 0, 0],
      cursor: { drag: { setScale: false, x: false, y: false }, points: { size: 6 }, y: false },
      scales: {
        x: { time: true },
        y: this.log
          ? { distr: 3, log: 10, range: (_, low, high) => uPlot.rangeLog(low ?? 1e-4, high ?? 1, 10, true) }
          : { range: (_, low, high) => [0, Math.max((high ?? 0) * 1.1, this.minimum)] },
      },
      axes: [
        { ...axis, space: 70, size: 30, values: (_, splits) => splits.map(clock) },
        { ...axis, size: 62, ...(this.binary ? { incrs: POWERS } : {}), values: (_, splits) => splits.map((each) => (each === null ? "" : this.axis(each))) },
      ],
      series: [
        {},
        ...series.map((each, index) => ({
          label: each.label,
          stroke: colour(`--series-${index % 6}`),
          width: 1.75,
          dash: DASHES[index % 6],
          points: { show: false },
          spanGaps: false,
        })),
      ],
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
    if (this.uplot && this.plot.clientWidth) this.uplot.setSize({ width: this.plot.clientWidth, height: HEIGHT });
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
    if (index !== null) this.announce?.(`${clock(this.data[0][index])}: ${this.#summary(index)}`);
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
    const parts = labels.map((label, number) => `${label} ${this.#textAt(number + 1, index)}`);
    return parts.join(", ") || "no values";
  }

  // Of now: the latest value that has come.
  #textAt(series, index) {
    const values = this.data[series] ?? [];
    let found = index;
    while (this.at === null && found > 0 && (values[found] ?? null) === null) found -= 1;
    const value = values[found] ?? null;
    const age = this.data[0][index] - this.data[0][found];
    return value !== null && age >= LATE_SECONDS ? `${this.format(value)}, ${span(age)} ago` : this.format(value);
  }

  #tell() {
    const index = this.at ?? this.data[0].length - 1;
    this.values?.forEach((value, number) => {
      value.textContent = this.#textAt(number + 1, index);
    });
    this.plot.setAttribute("aria-label", `${this.title}, ${this.at === null ? "now" : clock(this.data[0][index])}: ${this.#summary(index)}`);
  }
}
