// The trainers of the group: one row for each.

export class Trainers {
  // The trainers of an owner. Its sessions with other owners of the group are none, unless they train.
  of(owner, group) {
    return owner.lists.trainers.filter((each) => each.steps || !group.owners.has(each.member));
  }

  // One row for each trainer, however many owners know it.
  rows(owners, group) {
    const found = new Map();
    for (const owner of owners) {
      if (!owner.lists || !owner.answers) continue;
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
    // The owner that serves the page says who is slow, as /status.json does.
    for (const row of rows) row.slow = group.slow[row.id] ?? "";
    return rows;
  }
}
