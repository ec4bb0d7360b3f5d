// The trainers of the group: one row for each, and which of them are slow.

const MANY_LOOKS = 10;
const SLOW_SHARE = 0.6;

export class Trainers {
  constructor() {
    this.waited = new Map(); // how often rounds have waited for a trainer lately, from 0 to 1
    this.looked = null;
  }

  // The trainers of an owner. Its sessions with other owners of the group are none, unless they train.
  of(owner, group) {
    return owner.lists.trainers.filter((each) => each.steps || !group.owners.has(each.member));
  }

  // One row for each trainer, however many owners know it.
  rows(owners, group) {
    const found = new Map();
    const waiting = new Set();
    for (const owner of owners) {
      if (!owner.lists || !owner.answers) continue;
      for (const optimizer of owner.lists.optimizers) {
        for (const each of optimizer.waiting_for) waiting.add(each.slice(0, 8));
      }
      for (const each of this.of(owner, group)) {
        const row = found.get(each.id);
        if (!row) {
          found.set(each.id, {
            id: each.id, program: each.program, member: each.member, host: each.host_name, process: each.process_id,
            peer: each.peer, connected: each.connected, away: each.away_seconds, rate: each.steps_per_second,
            steps: each.steps, inFlight: each.requests_in_flight,
            bytes: each.request_bytes + each.waiting_bytes + each.answer_bytes + each.context_bytes,
            seen: each.last_seen_seconds, since: each.age_seconds, owners: [owner.facts.name],
          });
        } else {
          row.connected ||= each.connected;
          row.away = Math.min(row.away, each.away_seconds);
          row.rate = Math.max(row.rate, each.steps_per_second);
          row.steps = Math.max(row.steps, each.steps);
          row.inFlight += each.requests_in_flight;
          row.bytes += each.request_bytes + each.waiting_bytes + each.answer_bytes + each.context_bytes;
          row.seen = Math.min(row.seen, each.last_seen_seconds);
          row.since = Math.max(row.since, each.age_seconds);
          row.owners.push(owner.facts.name);
        }
      }
    }
    const rows = [...found.values()];
    this.#look(owners, rows, waiting);
    const rates = rows.filter((row) => row.connected && row.rate > 0).map((row) => row.rate).sort((a, b) => a - b);
    // Of two, the faster one.
    const usual = rates.length > 1 ? rates[rates.length >> 1] : 0;
    for (const row of rows) {
      row.slow = "";
      if (!row.connected) continue;
      if ((this.waited.get(row.id) ?? 0) > 0.5 && rows.length > 1) row.slow = "rounds wait for it";
      else if (row.rate > 0 && row.rate < SLOW_SHARE * usual) row.slow = `${Math.round((100 * row.rate) / usual)} % of the usual rate`;
    }
    return rows;
  }

  #look(owners, rows, waiting) {
    const lists = owners[0]?.lists;
    if (lists === this.looked) return;
    this.looked = lists;
    const everybody = rows.length > 0 && rows.every((row) => waiting.has(row.id.slice(0, 8)));
    for (const row of rows) {
      const now = !everybody && waiting.has(row.id.slice(0, 8)) ? 1 : 0;
      const before = this.waited.get(row.id) ?? 0;
      this.waited.set(row.id, before + (now - before) * (2 / (MANY_LOOKS + 1)));
    }
    const there = new Set(rows.map((row) => row.id));
    for (const id of this.waited.keys()) if (!there.has(id)) this.waited.delete(id);
  }
}
