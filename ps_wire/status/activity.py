"""What an owner does: operations, communicators, memory and events."""

from __future__ import annotations

from dataclasses import dataclass

from ps_wire.status.reading import Readable


@dataclass(frozen=True, slots=True)
class OperationStatus(Readable):
    """The finished requests of one operation, since the owner has started.

    Attributes:
        name: Its name.
        calls: Number of requests.
        errors: Those that ended in an error.
        seconds: Sum of their durations, from accepting a request to its answer.
        p50_seconds: Median of their durations, estimated from the buckets of a histogram.
        p99_seconds: 99 % of them were not longer, estimated in the same way.
    """

    name: str
    calls: int
    errors: int
    seconds: float
    p50_seconds: float
    p99_seconds: float


@dataclass(frozen=True, slots=True)
class CommunicatorStatus(Readable):
    """Trainers that exchange values through the owner.

    Attributes:
        name: The name of the communicator.
        size: How many members it has.
        members: Those that have joined and not left.
        open: Collectives that wait for members.
        waiting_for: The members that these wait for, up to 16.
        bytes: Bytes of values that it holds.
        ended: Why it has ended; empty while it has not.
    """

    name: str
    size: int
    members: int
    open: int
    waiting_for: tuple[str, ...]
    bytes: int
    ended: str


@dataclass(frozen=True, slots=True)
class MemoryStatus(Readable):
    """Memory of one kind.

    Attributes:
        kind: `process` (resident memory), `parameters` (with buffers), `tables`, `contexts` (open passes, and results
            that stay), `requests`, `waiting` (requests that wait for others), `answers`, `collectives` or
            `shared_memory`.
        bytes: Bytes in use.
        budget_bytes: The most that is allowed; 0 if there is no limit. That of the process is the memory of the machine
            or container.
        largest_bytes: If the budget is one for each trainer: what the trainer holds that holds most; else null.
    """

    kind: str
    bytes: int
    budget_bytes: int
    largest_bytes: int | None


@dataclass(frozen=True, slots=True)
class EventStatus(Readable):
    """Something that has happened on the owner.

    Attributes:
        number: Counts up from 1 since the process has started.
        time_seconds: Unix time.
        kind: What has happened.
        level: `info`, `warning` or `error`.
        text: The same as a sentence.
        trainer: Id of the session that it concerns; empty if it concerns none.
        subject: The object or method that it concerns; empty if it concerns none.
        count: How often the same has happened by then.
        traceback: Of an exception; empty if there is none.
    """

    number: int
    time_seconds: float
    kind: str
    level: str
    text: str
    trainer: str
    subject: str
    count: int
    traceback: str
