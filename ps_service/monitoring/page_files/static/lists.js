// The tables: sorted by a heading, filtered, and with some of the rows at first. All texts are set as text.

import { count } from "./formats.js";

export class List {
  // columns: key → { text(row), sort(row)?, fill(cell, row)?, descending? }
  constructor(root, { columns, key, sort = "", descending = false, atFirst = 50, hides = false }) {
    this.root = root;
    this.columns = columns;
    this.key = key;
    this.sort = sort;
    this.descending = descending;
    // Whether there is no table without rows.
    this.hides = hides;
    this.rows = [];
    this.shown = this.atFirst = atFirst;
    this.elements = new Map();
    this.body = root.querySelector("tbody");
    this.body.replaceChildren();
    this.count = root.querySelector(".count");
    this.empty = root.querySelector(".empty");
    this.more = root.querySelector(".more-rows");
    this.more.addEventListener("click", () => {
      this.shown += 100;
      this.render();
    });
    this.headings = [...root.querySelectorAll("thead th")];
    for (const heading of this.headings) this.#makeSortable(heading);
    const filter = root.querySelector(".filter");
    this.filter = filter?.querySelector("input") ?? null;
    if (filter) {
      filter.hidden = false;
      this.filter.addEventListener("input", () => {
        this.shown = this.atFirst;
        this.render();
      });
    }
  }

  show(rows) {
    this.rows = rows;
    if (this.hides) this.root.hidden = !rows.length;
    this.render();
  }

  render() {
    const wanted = this.filter?.value.trim().toLowerCase() ?? "";
    let rows = this.rows;
    if (wanted) rows = rows.filter((row) => this.#searched(row).includes(wanted));
    if (this.sort) rows = this.#sorted(rows);
    const found = rows.length;
    rows = rows.slice(0, this.shown);
    const used = new Map();
    let place = this.body.firstElementChild;
    for (const row of rows) {
      const key = this.key(row);
      if (used.has(key)) continue;
      const element = this.elements.get(key) ?? this.#made();
      used.set(key, element);
      this.#fill(element, row);
      // Rows that are where they belong stay there, so that focus and selection do.
      if (element === place) place = place.nextElementSibling;
      else this.body.insertBefore(element, place);
    }
    for (const [key, element] of this.elements) if (!used.has(key)) element.remove();
    this.elements = used;
    this.count.textContent = wanted ? `${count(found)} of ${count(this.rows.length)}` : found ? count(found) : "";
    if (wanted && !found) {
      this.emptyText ??= this.empty.textContent;
      this.empty.textContent = "Nothing matches.";
    } else if (this.emptyText) {
      this.empty.textContent = this.emptyText;
      this.emptyText = undefined;
    }
    this.empty.hidden = found > 0;
    this.root.querySelector(".scroll").hidden = found === 0;
    this.more.hidden = found <= this.shown;
    if (!this.more.hidden) this.more.textContent = `Show more (${count(found - this.shown)} left)`;
  }

  #makeSortable(heading) {
    const column = this.columns[heading.dataset.key];
    if (!column?.sort) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const same = this.sort === heading.dataset.key;
      this.descending = same ? !this.descending : heading.classList.contains("num");
      this.sort = heading.dataset.key;
      this.#markSorted();
      this.render();
    });
    if (heading.dataset.key === this.sort) heading.ariaSort = this.descending ? "descending" : "ascending";
  }

  #markSorted() {
    for (const heading of this.headings) {
      if (heading.dataset.key === this.sort) heading.ariaSort = this.descending ? "descending" : "ascending";
      else heading.removeAttribute("aria-sort");
    }
  }

  #sorted(rows) {
    const value = this.columns[this.sort].sort;
    const sign = this.descending ? -1 : 1;
    return rows.map((row) => [value(row), row]).sort(([one, first], [other, second]) => {
      if (one === other) return this.key(first) < this.key(second) ? -1 : 1;
      if (one === null || one === undefined) return 1;
      if (other === null || other === undefined) return -1;
      return (one < other ? -1 : 1) * sign;
    }).map(([, row]) => row);
  }

  #searched(row) {
    return Object.values(this.columns).map((column) => column.text?.(row) ?? "").join(" ").toLowerCase();
  }

  #made() {
    const row = document.createElement("tr");
    for (const heading of this.headings) {
      const isFirst = heading === this.headings[0] && !heading.classList.contains("num");
      const cell = document.createElement(isFirst ? "th" : "td");
      if (isFirst) cell.scope = "row";
      cell.className = heading.className;
      row.append(cell);
    }
    return row;
  }

  #fill(element, row) {
    this.headings.forEach((heading, index) => {
      const column = this.columns[heading.dataset.key];
      const cell = element.children[index];
      if (column.fill) column.fill(cell, row);
      else {
        const text = column.text(row);
        if (cell.textContent !== text) cell.textContent = text;
      }
    });
  }
}

// A small coloured word.
export function badge(cell, text, data) {
  let element = cell.firstElementChild;
  if (!element) cell.append((element = document.createElement("span")));
  element.className = "badge";
  if (element.textContent !== text) element.textContent = text;
  for (const name of ["state", "kind", "level"]) {
    if (data[name]) element.dataset[name] = data[name];
    else delete element.dataset[name];
  }
  element.title = data.title ?? "";
}

// A bar that says how much of a budget is used.
export function meter(cell, used) {
  let element = cell.firstElementChild;
  if (used === null) {
    cell.replaceChildren();
    return;
  }
  if (!element) {
    element = document.createElement("meter");
    element.min = 0;
    element.max = 1;
    element.high = 0.9;
    element.low = 0.7;
    element.optimum = 0;
    const text = document.createElement("span");
    cell.append(element, text);
  }
  element.value = used;
  const percent = `${(100 * used).toFixed(used < 0.1 && used > 0 ? 1 : 0)} %`;
  cell.lastElementChild.textContent = percent;
  element.ariaLabel = percent;
}
