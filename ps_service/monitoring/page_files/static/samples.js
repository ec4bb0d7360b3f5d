// What is known of the owners: their samples, lists and events, and the series of the charts made of them.

import { Curves } from "./curves.js";

// The order of a sample, as watched_owner.py encodes it.
const NUMBER = 0, ENDED = 1, SECONDS = 2, STEPS = 3, STALENESS = 4, OPERATIONS = 5, CONNECTED = 8, RESIDENT = 10, TRAINER_STEPS = 16;

const KEPT_SECONDS = 600;
const WINDOW_SECONDS = 10;

// The buckets of /metrics.
const DURATION_BOUNDS = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50,
];
const STALENESS_BOUNDS = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256];

// As histogram_quantile of Prometheus: linear within a bucket.
export function quantile(q, counts, bounds) {
  let total = 0;
  for (const each of counts) total += each;
  if (!total) return null;
  const rank = q * total;
  let below = 0;
  for (let index = 0; index < counts.length; index += 1) {
    const number = counts[index];
    if (number && below + number >= rank) {
      if (index >= bounds.length) return bounds[bounds.length - 1];
      const lower = index ? bounds[index - 1] : 0;
      return lower + ((bounds[index] - lower) * Math.max(rank - below, 0)) / number;
    }
    below += number;
  }
  return bounds[bounds.length - 1];
}

class Owner {
  constructor(facts) {
    this.facts = facts;
    this.incarnation = ""; // the latest that was told: facts have none before the owner has answered
    this.seconds = new Map(); // second → sample
    this.last = 0;
    this.latest = null;
    this.lists = null;
    this.events = [];
    this.lastEvent = 0;
    this.curves = new Curves();
  }

  add(samples) {
    for (const sample of samples) {
      if (sample[NUMBER] <= this.last) continue;
      this.last = sample[NUMBER];
      this.latest = sample;
      // It holds for every whole second within it.
      const end = Math.floor(sample[ENDED]);
      for (let second = Math.floor(sample[ENDED] - sample[SECONDS]) + 1; second <= end; second += 1) {
        this.seconds.set(second, sample);
      }
    }
    const oldest = this.latest ? this.latest[ENDED] - KEPT_SECONDS - WINDOW_SECONDS : 0;
    for (const second of this.seconds.keys()) {
      if (second >= oldest) break;
      this.seconds.delete(second);
    }
  }

  happened(events) {
    for (const event of events) {
      if (event.number <= this.lastEvent) continue;
      this.lastEvent = event.number;
      this.events.push({ ...event, owner: this.facts.name });
    }
    this.events.splice(0, Math.max(this.events.length - 200, 0));
  }

  get answers() {
    return ["serving", "stalled", "draining", "silent"].includes(this.facts.state);
  }
}

export class Group {
  constructor() {
    this.owners = new Map();
    this.now = 0;
    this.unseen = 0;
    this.alone = "";
    this.slow = {}; // why a trainer is slow, by its id
    this.complete = false;
    this.seenStates = []; // what the owner that serves the page has seen: owners lost and back
  }

  take(message) {
    if (message.now) this.now = message.now;
    if (message.complete) this.complete = true;
    if (message.slow) this.slow = message.slow;
    if (message.owners) this.#takeOwners(message);
    for (const [name, samples] of Object.entries(message.samples ?? {})) this.owners.get(name)?.add(samples);
    for (const [name, lists] of Object.entries(message.lists ?? {})) {
      const owner = this.owners.get(name);
      if (owner) owner.lists = lists;
    }
    for (const [name, curves] of Object.entries(message.curves ?? {})) this.owners.get(name)?.curves.take(curves);
    for (const [name, events] of Object.entries(message.events ?? {})) this.owners.get(name)?.happened(events);
  }

  #takeOwners(message) {
    this.unseen = message.unseen;
    this.alone = message.alone;
    const known = new Map();
    for (const facts of message.owners) {
      let owner = this.owners.get(facts.name);
      const before = owner?.facts;
      if (owner && owner.incarnation && facts.incarnation && owner.incarnation !== facts.incarnation) {
        owner = undefined; // it has started anew
        this.#see(facts, "started", "info", "the owner has started again");
      } else if (before && before.state !== facts.state) {
        if (facts.state === "lost") this.#see(facts, "lost", "error", `the owner is lost: ${facts.why}`);
        if (facts.state === "left") this.#see(facts, "left", "info", "the owner has left the group");
        if (before.state === "lost" && facts.state === "serving") {
          this.#see(facts, "back", "info", "the owner answers again");
        }
      }
      owner ??= new Owner(facts);
      owner.facts = facts;
      owner.incarnation = facts.incarnation || owner.incarnation;
      known.set(facts.name, owner);
    }
    this.owners = known;
  }

  #see(facts, kind, level, text) {
    this.seenStates.push({ time_seconds: facts.since, kind, level, text, owner: facts.name, count: 1, subject: "" });
    this.seenStates.splice(0, Math.max(this.seenStates.length - 100, 0));
  }

  chosen(name) {
    const all = [...this.owners.values()];
    return name ? all.filter((owner) => owner.facts.name === name) : all;
  }

  events(name) {
    const own = this.seenStates.filter((event) => !name || event.owner === name);
    return this.chosen(name).flatMap((owner) => owner.events).concat(own)
      .sort((one, other) => other.time_seconds - one.time_seconds);
  }

  // The seconds of a chart that ends now.
  grid(range) {
    const end = Math.floor(this.now) - 1;
    return Array.from({ length: range + 1 }, (_, index) => end - range + index);
  }

  steps(name, xs) {
    return this.#byOwner(name, xs, (sample) => (sample[SECONDS] ? sample[STEPS] / sample[SECONDS] : 0));
  }

  memory(name, xs) {
    return this.#byOwner(name, xs, (sample) => sample[RESIDENT]);
  }

  #byOwner(name, xs, value) {
    return this.chosen(name).map((owner) => ({
      label: owner.facts.name,
      values: xs.map((second) => {
        const sample = owner.seconds.get(second);
        return sample ? value(sample) : null;
      }),
    }));
  }

  staleness(name, xs) {
    const counts = new Array(STALENESS_BOUNDS.length + 1).fill(0);
    const p50 = [], p99 = [];
    this.#slide(name, xs, (sample, sign) => addPairs(counts, sample[STALENESS], 0, sign), () => {
      p50.push(quantile(0.5, counts, STALENESS_BOUNDS));
      p99.push(quantile(0.99, counts, STALENESS_BOUNDS));
    });
    return [{ label: "median", values: p50 }, { label: "p99", values: p99 }];
  }

  // The p99 of the operations with most requests in the range.
  latency(name, xs, most) {
    const totals = new Map();
    for (const owner of this.chosen(name)) {
      for (const second of xs) {
        for (const [operation, found] of Object.entries(owner.seconds.get(second)?.[OPERATIONS] ?? {})) {
          let number = 0;
          for (let index = 2; index < found.length; index += 2) number += found[index];
          totals.set(operation, (totals.get(operation) ?? 0) + number);
        }
      }
    }
    const operations = [...totals].sort((one, other) => other[1] - one[1]).slice(0, most).map((each) => each[0]).sort();
    return operations.map((operation) => {
      const counts = new Array(DURATION_BOUNDS.length + 1).fill(0);
      const values = [];
      this.#slide(name, xs, (sample, sign) => addPairs(counts, sample[OPERATIONS][operation], 1, sign), () =>
        values.push(quantile(0.99, counts, DURATION_BOUNDS)));
      return { label: operation, values };
    });
  }

  // Moves a window over the seconds: `change` adds and removes samples, and `read` is called for each second.
  #slide(name, xs, change, read) {
    const owners = this.chosen(name);
    const move = (second, sign) => {
      for (const owner of owners) {
        const sample = owner.seconds.get(second);
        if (sample) change(sample, sign);
      }
    };
    for (let second = xs[0] - WINDOW_SECONDS + 1; second < xs[0]; second += 1) move(second, 1);
    for (const second of xs) {
      move(second, 1);
      read();
      move(second - WINDOW_SECONDS + 1, -1);
    }
  }

  // The last ten seconds of some owners: rates, quantiles, and the operations. `passes` are those of trainers, also of
  // those that have left, on the owner with most of them.
  recent(owners) {
    const staleness = new Array(STALENESS_BOUNDS.length + 1).fill(0);
    const all = new Array(DURATION_BOUNDS.length + 1).fill(0);
    const operations = new Map();
    let steps = 0, passes = 0, requests = 0, errors = 0, resident = 0, connected = 0;
    for (const owner of owners) {
      if (!owner.latest || !owner.answers) continue;
      const samples = new Set();
      for (let second = Math.floor(owner.latest[ENDED]); samples.size < WINDOW_SECONDS; second -= 1) {
        const sample = owner.seconds.get(second);
        if (!sample) break;
        samples.add(sample);
      }
      let covered = 0;
      for (const sample of samples) covered += sample[SECONDS];
      let stepped = 0;
      for (const sample of samples) stepped += sample[TRAINER_STEPS];
      if (covered) passes = Math.max(passes, stepped / covered);
      for (const sample of samples) {
        steps += sample[STEPS] / covered;
        addPairs(staleness, sample[STALENESS], 0, 1);
        for (const [name, found] of Object.entries(sample[OPERATIONS])) {
          let of = operations.get(name);
          if (!of) operations.set(name, (of = { name, calls: 0, errors: 0, counts: new Array(all.length).fill(0) }));
          addPairs(all, found, 1, 1);
          addPairs(of.counts, found, 1, 1);
          let number = 0;
          for (let index = 2; index < found.length; index += 2) number += found[index];
          of.calls += number / covered;
          of.errors += found[0] / covered;
          requests += number / covered;
          errors += found[0] / covered;
        }
      }
      resident += owner.latest[RESIDENT];
      connected += owner.latest[CONNECTED];
    }
    return {
      steps, passes, requests, errors, resident, connected,
      staleness: [quantile(0.5, staleness, STALENESS_BOUNDS), quantile(0.99, staleness, STALENESS_BOUNDS)],
      latency: [quantile(0.5, all, DURATION_BOUNDS), quantile(0.99, all, DURATION_BOUNDS)],
      operations: [...operations.values()].map((of) => ({
        name: of.name, rate: of.calls, errors: of.errors,
        p50: quantile(0.5, of.counts, DURATION_BOUNDS), p99: quantile(0.99, of.counts, DURATION_BOUNDS),
      })),
    };
  }

  latestOf(owner) {
    const sample = owner.latest;
    return sample && { connected: sample[8], inFlight: sample[9], resident: sample[10], parameters: sample[11], tables: sample[12] };
  }
}

function addPairs(counts, pairs, from, sign) {
  for (let index = from; pairs && index + 1 < pairs.length; index += 2) counts[pairs[index]] += sign * pairs[index + 1];
}
