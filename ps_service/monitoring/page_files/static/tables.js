// Which columns the tables of the page have; their headings stand in templates/rows.html.

import { clock, count, rate, seconds, size, span, steps, value } from "./formats.js";
import { badge, List, meter } from "./lists.js";

// Those of modules, and the rows of tables.
const parameters = (latest) => latest && latest.parameters + latest.tables;

// What of the log is not on the disk.
const logged = (log) => {
  if (!log) return "";
  if (log.state !== "writable") return log.state;
  return log.unsynced_records ? `${size(log.unsynced_bytes)}, ${seconds(log.unsynced_seconds)}` : "none";
};

const TABLES = {
  owners: {
    key: (row) => row.facts.name,
    sort: "",
    columns: {
      name: { text: (row) => row.facts.name, sort: (row) => row.facts.name },
      state: {
        text: (row) => row.facts.state,
        sort: (row) => row.facts.state,
        fill: (cell, row) => {
          const { state, since, why } = row.facts;
          const isAway = ["silent", "lost", "left"].includes(state);
          badge(cell, isAway ? `${state} ${span(row.now - since)}` : state, { state, title: why });
        },
      },
      steps: { text: (row) => rate(row.recent?.steps), sort: (row) => row.recent?.steps },
      requests: { text: (row) => rate(row.recent?.requests), sort: (row) => row.recent?.requests },
      trainers: { text: (row) => count(row.trainers?.filter((each) => each.connected).length), sort: (row) => row.trainers?.length },
      objects: { text: (row) => count(row.facts.objects), sort: (row) => row.facts.objects },
      resident: { text: (row) => size(row.latest?.resident), sort: (row) => row.latest?.resident },
      parameters: { text: (row) => size(parameters(row.latest)), sort: (row) => parameters(row.latest) },
      log: {
        text: (row) => logged(row.log),
        sort: (row) => row.log?.unsynced_seconds,
        fill: (cell, row) => {
          const text = logged(row.log);
          if (row.log && row.log.state !== "writable") {
            if (!cell.firstElementChild) cell.replaceChildren();
            badge(cell, text, { state: "lost", title: row.log.why });
          } else if (cell.textContent !== text) cell.textContent = text;
        },
      },
      uptime: { text: (row) => span(row.facts.uptime_seconds), sort: (row) => row.facts.uptime_seconds },
      version: { text: (row) => row.facts.version ?? "", sort: (row) => row.facts.version },
      address: { text: (row) => row.facts.address, sort: (row) => row.facts.address },
    },
  },
  trainers: {
    key: (row) => row.id,
    sort: "state",
    columns: {
      name: {
        text: (row) => `${row.member || row.program || "trainer"} ${row.id}`,
        sort: (row) => row.member || row.program || row.id,
        fill: (cell, row) => {
          if (!cell.firstElementChild) {
            const name = document.createElement("span");
            const id = document.createElement("span");
            id.className = "muted mono";
            cell.append(name, " ", id);
          }
          cell.firstElementChild.textContent = row.member || row.program || "trainer";
          cell.lastElementChild.textContent = row.id;
        },
      },
      state: {
        text: (row) => (row.slow ? `slow ${row.slow}` : row.connected ? "connected" : "away"),
        sort: (row) => (row.slow ? 0 : row.connected ? 2 : 1),
        fill: (cell, row) => {
          if (row.slow) badge(cell, `slow: ${row.slow}`, { state: "slow" });
          else if (row.connected) badge(cell, "connected", { state: "connected" });
          else badge(cell, `away ${span(row.away)}`, { state: "away" });
        },
      },
      rate: { text: (row) => rate(row.rate), sort: (row) => row.rate },
      steps: { text: (row) => count(row.steps), sort: (row) => row.steps },
      inflight: { text: (row) => count(row.inFlight), sort: (row) => row.inFlight },
      bytes: { text: (row) => size(row.bytes), sort: (row) => row.bytes },
      seen: { text: (row) => span(row.seen), sort: (row) => row.seen },
      since: { text: (row) => span(row.since), sort: (row) => row.since },
      host: {
        text: (row) => (row.host ? `${row.host}${row.process ? `:${row.process}` : ""}` : row.peer),
        sort: (row) => row.host || row.peer,
      },
      owners: { text: (row) => row.owners.join(", "), sort: (row) => row.owners.length },
    },
  },
  optimizers: {
    key: (row) => `${row.owner} ${row.number} ${row.name}`,
    sort: "name",
    columns: {
      name: { text: (row) => row.name || "(anonymous)", sort: (row) => row.name },
      owner: { text: (row) => row.owner, sort: (row) => row.owner },
      class: { text: (row) => row.class_name.replace(/^torch\.optim\./, ""), sort: (row) => row.class_name },
      lr: {
        text: (row) => [...new Set(row.lr)].map((each) => (each === null ? "–" : String(Number(each.toPrecision(4))))).join(", ") || "–",
        sort: (row) => row.lr[0],
      },
      version: { text: (row) => count(row.version), sort: (row) => row.version },
      rate: { text: (row) => rate(row.steps_per_second), sort: (row) => row.steps_per_second },
      p50: { text: (row) => steps(row.staleness_p50), sort: (row) => row.staleness_p50 },
      p99: { text: (row) => steps(row.staleness_p99), sort: (row) => row.staleness_p99 },
      policy: { text: (row) => row.policy || "at once", sort: (row) => row.policy },
    },
  },
  values: {
    key: (row) => `${row.owner} ${row.number}`,
    sort: "name",
    columns: {
      name: { text: (row) => row.name, sort: (row) => row.name },
      optimizer: { text: (row) => row.label, sort: (row) => row.label },
      owner: { text: (row) => row.owner, sort: (row) => row.owner },
      latest: { text: (row) => value(row.latest), sort: (row) => row.latest },
      low: { text: (row) => value(row.low), sort: (row) => row.low },
      high: { text: (row) => value(row.high), sort: (row) => row.high },
      reports: { text: (row) => count(row.reports), sort: (row) => row.reports },
      rest: { text: (row) => count(row.notFinite), sort: (row) => row.notFinite },
      version: { text: (row) => count(row.version), sort: (row) => row.version },
    },
  },
  operations: {
    key: (row) => row.name,
    sort: "rate",
    descending: true,
    columns: {
      name: { text: (row) => row.name, sort: (row) => row.name },
      rate: { text: (row) => rate(row.rate), sort: (row) => row.rate },
      errors: { text: (row) => rate(row.errors), sort: (row) => row.errors },
      p50: { text: (row) => seconds(row.p50), sort: (row) => row.p50 },
      p99: { text: (row) => seconds(row.p99), sort: (row) => row.p99 },
    },
  },
  tables: {
    key: (row) => row.name,
    sort: "name",
    columns: {
      name: { text: (row) => row.name, sort: (row) => row.name },
      owners: { text: (row) => count(row.owners), sort: (row) => row.owners },
      rows: { text: (row) => count(row.rows), sort: (row) => row.rows },
      dim: { text: (row) => count(row.dim), sort: (row) => row.dim },
      bytes: { text: (row) => size(row.bytes), sort: (row) => row.bytes },
      updates: { text: (row) => count(row.updates), sort: (row) => row.updates },
    },
  },
  memory: {
    key: (row) => row.kind,
    sort: "",
    columns: {
      name: { text: (row) => row.kind.replaceAll("_", " "), sort: (row) => row.kind },
      owner: { text: (row) => row.owner, sort: (row) => row.owner },
      bytes: { text: (row) => size(row.bytes), sort: (row) => row.bytes },
      budget: {
        text: (row) => (row.budget ? `${size(row.budget)}${row.isEach ? " each" : ""}` : "–"),
        sort: (row) => row.budget,
      },
      used: { text: () => "", sort: (row) => row.used, fill: (cell, row) => meter(cell, row.used) },
    },
  },
  quotas: {
    hides: true,
    key: (row) => `${row.owner} ${row.section} ${row.name}`,
    sort: "",
    columns: {
      of: { text: (row) => row.section, sort: (row) => row.section },
      name: { text: (row) => row.name, sort: (row) => row.name },
      owner: { text: (row) => row.owner, sort: (row) => row.owner },
      used: { text: (row) => amount(row.name, row.used), sort: (row) => row.used },
      most: { text: (row) => amount(row.name, row.quota), sort: (row) => row.quota },
      share: { text: () => "", sort: (row) => row.share, fill: (cell, row) => meter(cell, row.share) },
    },
  },
  errors: events(8),
  events: events(20),
};

function events(atFirst) {
  return {
    atFirst,
    key: (row) => `${row.owner} ${row.number ?? ""} ${row.time_seconds} ${row.kind}`,
    sort: "",
    columns: {
      time: { text: (row) => clock(row.time_seconds) },
      owner: { text: (row) => row.owner },
      kind: { text: (row) => row.kind, fill: (cell, row) => badge(cell, row.kind.replaceAll("_", " "), { kind: row.kind, level: row.level }) },
      text: { text: (row) => row.text, fill: fillText },
    },
  };
}

// Of a quota, whose name says what it counts.
function amount(name, value) {
  if (name.endsWith("_bytes")) return size(value);
  return Number.isInteger(value) ? count(value) : rate(value);
}

function fillText(cell, row) {
  const { text } = row;
  if (!row.traceback) {
    if (cell.textContent !== text) cell.textContent = text;
    return;
  }
  let details = cell.firstElementChild;
  if (!details) {
    details = document.createElement("details");
    const traceback = document.createElement("pre");
    traceback.textContent = row.traceback;
    details.append(document.createElement("summary"), traceback);
    cell.replaceChildren(details);
  }
  details.firstElementChild.textContent = text;
}

export function lists() {
  return Object.fromEntries(Object.entries(TABLES).map(([id, table]) => [id, new List(document.getElementById(id), table)]));
}
