"""The status of an owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from ps_wire.status.parts import (
    CommunicatorStatus,
    EventStatus,
    LogStatus,
    MemberStatus,
    MemoryStatus,
    ObjectStatus,
    OperationStatus,
    OptimizerStatus,
    PassStatus,
    QuotaStatus,
    Readable,
    TableStatus,
    TrainerStatus,
)

_MOST: Final = 20
"""Most rows of a table that a notebook shows."""


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    """A table without styles, for a notebook. Below it, what `total` has beyond `rows` is counted."""
    if not rows:
        return ""
    more = f"<p>and {total - len(rows):,} more</p>" if total > len(rows) else ""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


@dataclass(frozen=True, slots=True)
class OwnerStatus(Readable):
    """The status of an owner at one moment. Lists have at most 1000 entries each, unless another number was asked for.

    Attributes:
        owner: Its name.
        version: Its release.
        uptime_seconds: Seconds since its process has started.
        serving: Whether it takes new work.
        objects: Objects but for optimizers; those with names first if there are more than are listed.
        optimizers: Optimizers; those with names first if there are more than are listed.
        parameters: Elements of all parameters, and numbers in rows of tables.
        bytes: Bytes of all parameters, buffers and tables.
        sessions: Number of sessions of trainers.
        connected_sessions: Those with an open connection.
        contexts: Number of open passes.
        kept_answers: Answers that are kept until they are confirmed.
        requests_in_flight: Requests without an answer, but for those for this status.
        operations: Finished requests by operation, but for those that only look, such as for this status.
        calls_per_second: Finished requests per second over the last ten seconds, but for those for this status.
        resident_bytes: Resident memory of the process.
        shared_memory_connections: Open shared-memory connections.
        shared_bytes: Shared memory that the owner writes to.
        references: References of trainers to objects of this owner.
        borrowed: References to objects of other owners, held by code that runs here.
        waiting: Requests that wait for a result while no thread runs them.
        members: Members of the group whose directory this owner keeps.
        threads: Compute threads that may run at once.
        threads_waiting: Compute threads whose work waits for another process or for a lock.
        threads_lost: Compute threads that run abandoned work.
        threads_spare: Most additional threads that may replace lost ones.
        stalled: Whether abandoned work holds all threads, spare ones included.
        request_bytes: Bytes of large requests that are being received, wait for a thread or run.
        waiting_bytes: Bytes of large requests that wait for other requests.
        answer_bytes: Bytes of answers that are not confirmed or not sent.
        paused_sessions: Sessions that are not read from, because messages hold too many bytes.
        context_bytes: Bytes of tensors that open passes hold, and of results that stay on the owner.
        direct_connections: Open direct connections.
        tables: Embedding tables.
        time_seconds: Unix time on the owner.
        process_id: Its process number.
        host_name: Name of its host.
        state: `serving`, `stalled` or `draining`.
        device: Where hosted modules are, such as `cuda:0`.
        trainers: Trainers, the oldest first; `sessions` counts all.
        communicators: Communicators.
        memory: Memory by kind.
        passes: Open passes, the oldest first; `contexts` counts all.
        objects_hosted: Number of all objects, optimizers included.
        kinds: Number of objects by kind: `module`, `optimizer`, `scheduler`, `table`, `tensor`, `other`.
        communicators_open: Number of all communicators.
        directory: Address of the owner with the directory of the group; empty if it is this one, or there is no group.
        events: The latest events, if they were asked for.
        last_event: Number of the latest event; 0 if there was none.
        steps_per_second: Steps per second of all optimizers together.
        optimizers_hosted: Number of all optimizers.
        tables_hosted: Number of all tables.
        members_known: Number of all members in the directory.
        log: Its log; null if it has none.
        quotas: What is used of which quota, if it has a file of quotas: by all, by identities and by namespaces.
    """

    owner: str
    version: str
    uptime_seconds: float
    serving: bool
    objects: tuple[ObjectStatus, ...]
    optimizers: tuple[OptimizerStatus, ...]
    parameters: int
    bytes: int
    sessions: int
    connected_sessions: int
    contexts: int
    kept_answers: int
    requests_in_flight: int
    operations: tuple[OperationStatus, ...]
    calls_per_second: float
    resident_bytes: int
    shared_memory_connections: int
    shared_bytes: int
    references: int
    borrowed: int
    waiting: int
    members: tuple[MemberStatus, ...]
    threads: int
    threads_waiting: int
    threads_lost: int
    threads_spare: int
    stalled: bool
    request_bytes: int
    waiting_bytes: int
    answer_bytes: int
    paused_sessions: int
    context_bytes: int
    direct_connections: int
    tables: tuple[TableStatus, ...]
    time_seconds: float
    process_id: int
    host_name: str
    state: str
    device: str
    trainers: tuple[TrainerStatus, ...]
    communicators: tuple[CommunicatorStatus, ...]
    memory: tuple[MemoryStatus, ...]
    passes: tuple[PassStatus, ...]
    objects_hosted: int
    kinds: dict[str, int]
    communicators_open: int
    directory: str
    events: tuple[EventStatus, ...]
    last_event: int
    steps_per_second: float
    optimizers_hosted: int
    tables_hosted: int
    members_known: int
    log: LogStatus | None
    quotas: tuple[QuotaStatus, ...]

    def __repr__(self) -> str:
        return (
            f"<OwnerStatus of {self.owner!r}: {self.state}, {self.connected_sessions} of {self.sessions} sessions "
            f"connected, {self.objects_hosted} objects, {self.steps_per_second:.3g} steps/s>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head = (
            f"<b>{escape(self.owner)}</b> is {escape(self.state)}, {self.connected_sessions:,} of "
            f"{self.sessions:,} sessions connected, {self.steps_per_second:.3g} steps/s, "
            f"{self.parameters:,} parameters"
        )
        return f"<div><p>{head}</p>{''.join(_tables(self))}</div>"


def _tables(status: OwnerStatus) -> Iterable[str]:
    yield _table(
        "Trainers",
        ("trainer", "host", "steps", "steps/s", "seen", "in flight", "bytes held"),
        [
            (
                each.name,
                each.host_name,
                f"{each.steps:,}",
                f"{each.steps_per_second:.3g}",
                f"{each.last_seen_seconds:.1f} s" if each.connected else f"away {each.away_seconds:.0f} s",
                f"{each.requests_in_flight:,}",
                f"{each.held_bytes:,}",
            )
            for each in status.trainers[:_MOST]
        ],
        status.sessions,
    )
    yield _table(
        "Optimizers",
        ("optimizer", "class", "lr", "version", "steps/s", "staleness p50/p99", "policy"),
        [
            (
                each.name or "(anonymous)",
                each.class_name,
                ", ".join(f"{rate:.3g}" for rate in each.lr),
                f"{each.version:,}",
                f"{each.steps_per_second:.3g}",
                "" if each.staleness_p50 is None else f"{each.staleness_p50}/{each.staleness_p99}",
                each.policy,
            )
            for each in status.optimizers[:_MOST]
        ],
        status.optimizers_hosted,
    )
    yield _table(
        "Objects",
        ("object", "class", "parameters", "bytes", "handles"),
        [
            (
                each.name or "(anonymous)",
                each.class_name,
                f"{each.parameters:,}",
                f"{each.bytes:,}",
                f"{each.references:,}",
            )
            for each in status.objects[:_MOST]
        ],
        status.objects_hosted - status.optimizers_hosted,
    )
    yield _table("Events", ("number", "event"), [(str(each.number), each.text) for each in status.events[-_MOST:]], 0)
