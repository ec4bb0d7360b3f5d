// The charts of what trainers report: one for each value, with a line for each optimizer, over the versions of these.

import { Chart, COLOURS } from "./charts.js";
import { labelled, line, summary, told } from "./curves.js";
import { count, plural, short, value } from "./formats.js";

const MOST_CHARTS = 12;
const MOST_LINES = 6;

const byId = (id) => document.getElementById(id);
const VERSIONS = { time: false, text: (version) => `version ${count(version)}`, axis: count };

export class ValueCharts {
  constructor(announce) {
    this.announce = announce;
    this.charts = new Map();
    this.value = byId("value");
    this.optimizer = byId("value-optimizer");
    this.log = byId("value-log");
    this.place = byId("value-charts");
    this.template = byId("value-chart");
    this.owners = [];
    this.drawn = ""; // the choices that are drawn, and how often the curves of each owner had changed
    for (const each of [this.value, this.optimizer, this.log]) each.addEventListener("change", () => this.show(this.owners));
  }

  // Shows the curves of some owners; returns the rows of the table.
  show(owners) {
    this.owners = owners;
    const curves = labelled(owners);
    const labels = [...new Set(curves.map((each) => each.label))];
    choose(this.value, [...new Set(curves.map((each) => each.name))]);
    choose(this.optimizer, labels);
    byId("values-charts").hidden = !curves.length;
    const changes = owners.map((owner) => `${owner.facts.name} ${owner.facts.incarnation} ${owner.curves.changes}`);
    const drawn = [this.value.value, this.optimizer.value, this.log.checked, ...changes].join("\n");
    if (!document.hidden && drawn !== this.drawn) {
      this.drawn = drawn;
      this.#draw(curves, labels);
    }
    return curves.map(summary);
  }

  // Colours have changed.
  redraw() {
    this.drawn = "";
    for (const chart of this.charts.values()) chart.redraw();
  }

  #draw(curves, labels) {
    const byName = new Map();
    for (const curve of curves) {
      if (this.optimizer.value && curve.label !== this.optimizer.value) continue;
      if (this.value.value && curve.name !== this.value.value) continue;
      byName.set(curve.name, [...(byName.get(curve.name) ?? []), curve]);
    }
    const names = [...byName.keys()].slice(0, MOST_CHARTS);
    for (const [name, chart] of this.charts) {
      if (names.includes(name)) continue;
      chart.root.remove();
      this.charts.delete(name);
    }
    let without = 0;
    names.forEach((name, index) => {
      const chart = this.charts.get(name) ?? this.#made(name);
      if (this.place.children[index] !== chart.root) this.place.insertBefore(chart.root, this.place.children[index] ?? null);
      const shown = byName.get(name).slice(0, MOST_LINES);
      without += byName.get(name).length - shown.length;
      this.#show(chart, shown, labels);
    });
    this.place.classList.toggle("one", names.length === 1);
    this.#tellRest(byName.size - names.length, without);
  }

  #made(name) {
    const root = this.template.content.firstElementChild.cloneNode(true);
    root.querySelector("h3").textContent = name;
    root.querySelector("h3").title = name;
    this.place.append(root);
    const chart = new Chart(root, { format: value, axis: short, x: VERSIONS, height: 170, fits: true });
    chart.announce = this.announce;
    this.charts.set(name, chart);
    return chart;
  }

  #show(chart, curves, labels) {
    const isLog = this.log.checked && curves.every((curve) => summary(curve).low === null || summary(curve).low > 0);
    if (chart.log !== isLog) {
      chart.log = isLog;
      chart.redraw();
    }
    chart.root.querySelector("figcaption span").textContent = this.log.checked && !isLog ? "not all positive: linear scale" : "mean and range, by version";
    const [xs, ...columns] = uPlot.join(curves.map(line));
    // An optimizer has the same colour in all charts, unless another one of this chart has it, too.
    const colours = curves.map((curve) => labels.indexOf(curve.label) % COLOURS);
    const areOwn = new Set(colours).size === colours.length;
    const series = curves.map((curve, index) => ({
      label: curve.label,
      colour: areOwn ? colours[index] : index,
      values: columns[3 * index],
      low: columns[3 * index + 1],
      high: columns[3 * index + 2],
      told: (version) => told(curve, version),
    }));
    chart.show(xs, series, []);
  }

  #tellRest(charts, lines) {
    const parts = [];
    if (charts) parts.push(`${plural(charts, "more value")}: choose one by its name.`);
    if (lines) parts.push(`${plural(lines, "more line")}: choose an optimizer.`);
    const leftOut = this.owners.reduce((sum, owner) => sum + owner.curves.leftOut, 0);
    if (leftOut) parts.push(`${plural(leftOut, "reported value has", "reported values have")} no curve: an owner keeps 16 names of one optimizer, and 256 curves.`);
    const text = parts.join(" ");
    const rest = byId("values-rest");
    rest.hidden = !text;
    if (rest.textContent !== text) rest.textContent = text;
  }
}

// Offers names beside "all", which comes first.
function choose(select, names) {
  if (names.join("\n") !== [...select.options].slice(1).map((each) => each.value).join("\n")) {
    const chosen = select.value;
    select.replaceChildren(select.options[0], ...names.map((name) => new Option(name, name)));
    select.value = names.includes(chosen) ? chosen : "";
  }
  select.closest("label").hidden = names.length < 2;
}
