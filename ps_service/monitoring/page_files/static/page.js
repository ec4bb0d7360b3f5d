// Puts the page together: messages come in, and once a second what is shown is brought up to date.

import { Chart } from "./charts.js";
import { clock, count, plural, rate, seconds, size, span, steps } from "./formats.js";
import { Group } from "./samples.js";
import { Stream } from "./stream.js";
import { lists as makeLists } from "./tables.js";
import { Trainers } from "./trainers.js";
import { ValueCharts } from "./value_charts.js";

const MARKED = { joined: "joined", back: "joined", started: "joined", left: "left", lost: "lost", ended: "lost", checkpoint: "checkpoint",
  restored: "checkpoint", draining: "drained", drained: "drained", raised: "raised" };
const MOST_OPERATIONS = 5;
const MOST_LINES = 6;

const byId = (id) => document.getElementById(id);
const group = new Group();
const trainers = new Trainers();
const lists = makeLists();
const announcer = byId("announcer");
const charts = {
  steps: new Chart(byId("chart-steps"), { format: rate, axis: (value) => (Number.isInteger(value) ? count(value) : rate(value)) }),
  latency: new Chart(byId("chart-latency"), { format: seconds, log: true }),
  staleness: new Chart(byId("chart-staleness"), { format: steps, minimum: 4 }),
  memory: new Chart(byId("chart-memory"), { format: size, minimum: 1 << 20, binary: true }),
};
const chosen = { owner: "", range: 180, paused: false };
const values = new ValueCharts(announce);
let announced = new Map();
let announcedLive = "loading";

function announce(text) {
  announcer.textContent = text;
}

for (const chart of Object.values(charts)) chart.announce = announce;

// What is shown

function setTile(id, value, more, level = "") {
  const tile = byId(`tile-${id}`);
  const [, first, second] = tile.children;
  if (first.textContent !== value) first.textContent = value;
  if (second.textContent !== more) second.textContent = more;
  tile.dataset.level = level;
}

// Several owners in one line, if there are more than colours.
function fewer(series, add) {
  if (series.length <= MOST_LINES) return series;
  const sums = series[0].values.map((_, index) => series.reduce((sum, each) => (each.values[index] === null ? sum : (sum ?? 0) + each.values[index]), null));
  return [{ label: add, values: sums }];
}

function showTiles(owners, rows) {
  const now = group.recent(owners);
  const slow = rows.filter((row) => row.slow).length;
  const connected = rows.filter((row) => row.connected).length;
  const away = owners.filter((owner) => !owner.answers && owner.facts.state !== "asked" && owner.facts.state !== "left");
  // A pass that steps on several owners is one step. Trainers that have left are in the samples only.
  setTile("steps", rate(Math.max(rows.reduce((sum, row) => sum + row.rate, 0), now.passes)), "of all trainers");
  setTile("staleness", steps(now.staleness[0]), `p99 ${steps(now.staleness[1])} steps`);
  setTile("latency", seconds(now.latency[1]), now.errors > 0 ? `${rate(now.requests)} requests/s, ${rate(now.errors)} errors/s` : `${rate(now.requests)} requests/s`, now.errors > 0 ? "warning" : "");
  setTile("trainers", count(connected), slow ? `connected, ${count(slow)} slow` : "connected", slow ? "warning" : "");
  setTile("owners", `${count(owners.filter((owner) => owner.answers).length)} of ${count(owners.length)}`,
    away.length ? `${plural(away.length, "owner")} lost` : "answer", away.length ? "error" : "");
  setTile("memory", size(now.resident), "resident, all owners");
  return now;
}

function showCharts() {
  const xs = group.grid(chosen.range);
  const marks = group.events(chosen.owner).filter((event) => event.kind in MARKED && event.time_seconds >= xs[0])
    .map((event) => ({ time: event.time_seconds, kind: MARKED[event.kind] }));
  charts.steps.show(xs, fewer(group.steps(chosen.owner, xs), "all owners"), marks);
  charts.latency.show(xs, group.latency(chosen.owner, xs, MOST_OPERATIONS), marks);
  charts.staleness.show(xs, group.staleness(chosen.owner, xs), marks);
  charts.memory.show(xs, fewer(group.memory(chosen.owner, xs), "all owners"), marks);
}

// One row for each kind: what all owners hold of it, and the owner that has used most of its budget.
function memoryOf(owners) {
  const kinds = new Map();
  for (const owner of owners) {
    for (const each of owner.lists.memory) {
      const used = each.budget_bytes ? Math.min((each.largest_bytes ?? each.bytes) / each.budget_bytes, 1) : null;
      const row = kinds.get(each.kind) ?? { kind: each.kind, bytes: 0, used: -1, owner: "", budget: 0, isEach: false };
      row.bytes += each.bytes;
      if (used !== null && used > row.used) {
        Object.assign(row, { used, owner: owner.facts.name, budget: each.budget_bytes, isEach: each.largest_bytes !== undefined });
      }
      kinds.set(each.kind, row);
    }
  }
  return [...kinds.values()].filter((row) => row.bytes || row.budget).map((row) => ({ ...row, used: row.used < 0 ? null : row.used }));
}

// The quotas of an owner that are not without limit.
function quotasOf(owner) {
  const limited = owner.lists.quotas.filter((each) => each.quota !== undefined && each.quota !== null);
  return limited.map((each) => ({ ...each, owner: owner.facts.name, share: each.quota ? Math.min(each.used / each.quota, 1) : null }));
}

function showLists(owners, rows, now) {
  lists.owners.show([...group.owners.values()].map((owner) => ({
    facts: owner.facts, now: group.now, trainers: owner.answers && owner.lists ? trainers.of(owner, group) : null, latest: owner.answers ? group.latestOf(owner) : null,
    recent: owner.answers ? group.recent([owner]) : null, log: owner.answers ? owner.lists?.log : null,
  })));
  lists.trainers.show(rows);
  lists.operations.show(now.operations);
  const known = owners.filter((owner) => owner.lists && owner.answers);
  lists.optimizers.show(known.flatMap((owner) => owner.lists.optimizers.map((each, number) => ({ ...each, owner: owner.facts.name, number }))));
  lists.memory.show(memoryOf(known));
  lists.quotas.show(known.flatMap(quotasOf));
  const tables = new Map();
  for (const owner of known) {
    for (const each of owner.lists.tables) {
      const of = tables.get(each.name) ?? { name: each.name, owners: 0, rows: 0, dim: each.dim, bytes: 0, updates: 0 };
      tables.set(each.name, { ...of, owners: of.owners + 1, rows: of.rows + each.rows, bytes: of.bytes + each.bytes, updates: of.updates + each.updates });
    }
  }
  lists.tables.show([...tables.values()]);
  lists.values.show(values.show(owners));
  const events = group.events(chosen.owner);
  lists.errors.show(events.filter((event) => event.level !== "info").slice(0, 200));
  lists.events.show(events.slice(0, 200));
}

function showOwnerChoice() {
  const select = byId("owner");
  const names = [...group.owners.keys()];
  if (names.join("\n") === [...select.options].slice(1).map((each) => each.value).join("\n")) return;
  const made = names.map((name) => new Option(name, name, false, name === chosen.owner));
  select.replaceChildren(select.options[0], ...made);
  select.value = names.includes(chosen.owner) ? chosen.owner : "";
  chosen.owner = select.value;
  select.closest("label").hidden = names.length < 2;
}

function tellStates() {
  const states = new Map([...group.owners.values()].map((owner) => [owner.facts.name, owner.facts.state]));
  const news = [...states].filter(([name, state]) => announced.has(name) && announced.get(name) !== state && state !== "silent");
  if (news.length) announce(news.map(([name, state]) => `${name} is ${state}`).join(", "));
  announced = states;
}

function show() {
  if (!group.complete) return;
  byId("controls").hidden = false;
  byId("charts").hidden = false;
  showOwnerChoice();
  const owners = group.chosen(chosen.owner);
  const rows = trainers.rows(owners, group);
  const now = showTiles(owners, rows);
  showLists(owners, rows, now);
  if (!document.hidden) showCharts();
  tellStates();
  byId("footer-time").textContent = `as of ${clock(group.now)}`;
  showLive();
}

// Whether it is live

function showLive() {
  const live = byId("live"), banner = byId("banner");
  const { state } = stream;
  const last = group.now ? `The numbers are from ${clock(group.now)}.` : "";
  const for_ = span((Date.now() - (stream.heard || stream.since)) / 1000);
  const lost = [...group.owners.values()].filter((owner) => owner.facts.state === "lost").map((owner) => owner.facts.name);
  let text = "", kind = "error";
  if (state === "loading") live.dataset.state = "loading";
  else if (state === "lost") text = `Connection lost. Trying again, for ${for_}. ${last}`;
  else if (state === "refused") text = "The owner does not answer this page: it may be stopping, or too many pages are open. Trying again.";
  else if (state === "stale") {
    text = `Nothing has come for ${for_}: the owner is busy or hangs. ${last}`;
    kind = "warning";
  } else if (lost.length) text = `${lost.join(", ")} ${lost.length === 1 ? "does" : "do"} not answer.`;
  else if (group.alone) {
    text = `The directory of the group does not answer: ${group.alone}`;
    kind = "warning";
  } else if (group.unseen) {
    text = `The group has ${plural(group.unseen, "more member")} that this page does not watch.`;
    kind = "note";
  }
  const words = { loading: "Connecting", live: chosen.paused ? "Paused" : "Live", stale: "Stale", lost: "Connection lost", refused: "No connection" };
  live.dataset.state = state === "live" && chosen.paused ? "paused" : state;
  byId("live-text").textContent = words[state];
  // The banner counts seconds, so it is read once and not with every change.
  if (state !== announcedLive) announce(text || words[state]);
  announcedLive = state;
  banner.hidden = !text;
  banner.dataset.kind = kind;
  if (banner.textContent !== text) banner.textContent = text;
  document.body.classList.toggle("old", state !== "live" && state !== "loading");
}

const stream = new Stream((message) => {
  group.take(message);
  if (group.complete && !chosen.paused && (message.now || message.complete)) show();
}, showLive);

// What can be chosen

byId("owner").addEventListener("change", (event) => {
  chosen.owner = event.target.value;
  show();
});
for (const input of document.querySelectorAll("input[name=range]")) {
  input.addEventListener("change", () => {
    chosen.range = Number(input.value);
    show();
  });
}
byId("pause").addEventListener("click", (event) => {
  chosen.paused = !chosen.paused;
  event.currentTarget.ariaPressed = String(chosen.paused);
  event.currentTarget.textContent = chosen.paused ? "Go on" : "Pause";
  if (chosen.paused) showLive();
  else show();
});
const theme = byId("theme");
theme.value = document.documentElement.dataset.theme;
theme.addEventListener("change", () => {
  document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem("ps-theme", theme.value);
  } catch {
    // Storage may be forbidden; the choice then holds until the page is closed.
  }
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !chosen.paused) show();
});

function redraw() {
  for (const chart of Object.values(charts)) chart.redraw();
  values.redraw();
  show();
}
