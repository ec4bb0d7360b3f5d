"""The parts of the status of an owner: who works with it, what it hosts, and what it does."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from google.protobuf.message import Message


class Readable:
    """Reads the fields of a dataclass from a message that has fields of the same names."""

    __slots__ = ()

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """The content of a message. A field that is absent and may be is None."""
        of: Any = cls
        return cls(**{name: read(message) for name, read in _readers(of)})

    def as_plain(self) -> dict[str, Any]:
        """The content as what JSON has: dicts, lists, numbers, strings, bools and None."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # every subclass is a dataclass


@functools.cache
def _readers(cls: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """For each field its name, and what reads it from a message."""
    known = typing.get_type_hints(cls)
    return [(each.name, _reader(each.name, known[each.name])) for each in fields(cls)]


def _reader(name: str, kind: Any) -> Callable[[Any], Any]:
    """What reads a field of a message, as the type of the field of the dataclass says."""
    get = attrgetter(name)
    origin = typing.get_origin(kind)
    if origin is types.UnionType:
        given = typing.get_args(kind)[0]
        if isinstance(given, type) and issubclass(given, Readable):
            return lambda message: given.from_message(get(message)) if message.HasField(name) else None
        return lambda message: get(message) if message.HasField(name) else None
    if origin is dict:
        return lambda message: dict(sorted(get(message).items()))
    if origin is tuple:
        of = typing.get_args(kind)[0]
        if issubclass(of, Readable):
            return lambda message: tuple(map(of.from_message, get(message)))
        return lambda message: tuple(get(message))
    return get


@dataclass(frozen=True, slots=True)
class TrainerStatus(Readable):
    """A trainer, or another member of the group, with a session on the owner.

    Attributes:
        id: The first eight hexadecimal digits of its id; followed by ~ and a number if several sessions share them.
        transport: Of its latest connection: `grpc`, `direct`, `shared_memory`, `unary`; or `in_process` if it is a part
            of the owner's process.
        peer: Its address, or its process for a shared-memory connection.
        connected: Whether a stream is open, or a unary call runs.
        away_seconds: Seconds since the connection ended; 0 while connected.
        age_seconds: Seconds since it came.
        contexts: Number of its open passes.
        oldest_context_seconds: Age of the oldest of them.
        requests_in_flight: Requests without an answer.
        request_bytes: Bytes of large requests that are being received, wait for a thread or run.
        waiting_bytes: Bytes of large requests that wait for other requests.
        answer_bytes: Bytes of answers that are not confirmed or not sent.
        references: References to objects of this owner.
        context_bytes: Bytes of tensors that its open passes hold, and of its results that stay on the owner.
        program: Name of its program, as it says itself; empty for unary methods.
        host_name: Name of its host, as it says itself; empty for unary methods.
        process_id: Its process number, as it says itself; 0 for unary methods.
        member: Its name in the group; empty if it is no member.
        steps: Passes with which it has stepped an optimizer on this owner, and pushes of replicas.
        steps_per_second: The rate of these, over the last ten seconds, or over longer for slower steps.
        last_seen_seconds: Seconds since its latest request arrived, or since it came.
    """

    id: str
    transport: str
    peer: str
    connected: bool
    away_seconds: float
    age_seconds: float
    contexts: int
    oldest_context_seconds: float
    requests_in_flight: int
    request_bytes: int
    waiting_bytes: int
    answer_bytes: int
    references: int
    context_bytes: int
    program: str
    host_name: str
    process_id: int
    member: str
    steps: int
    steps_per_second: float
    last_seen_seconds: float

    @property
    def name(self) -> str:
        """What people call it: its name in the group, else its program and process, else its address."""
        if self.member:
            return self.member
        return f"{self.program}[{self.process_id}]" if self.process_id else self.peer or self.id

    @property
    def held_bytes(self) -> int:
        """All bytes that it holds on the owner."""
        return self.request_bytes + self.waiting_bytes + self.answer_bytes + self.context_bytes


@dataclass(frozen=True, slots=True)
class PassStatus(Readable):
    """An open pass.

    Attributes:
        id: The first eight digits of the trainer's id, a slash, and the number of the context.
        age_seconds: Seconds since it began on this owner.
        unused_seconds: Seconds since its last request ended; 0 while one runs.
        requests_in_flight: Its requests without an answer.
        sessions: Ids of the sessions that use it on this owner.
    """

    id: str
    age_seconds: float
    unused_seconds: float
    requests_in_flight: int
    sessions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemberStatus(Readable):
    """A member of the group whose directory the owner keeps.

    Attributes:
        name: Its name.
        address: Host and port of its owner.
        id: Its rank or number.
        away: Whether its process has no connection to the directory now.
        is_owner: Whether it is an owner that serves trainers, and no program that has joined by itself.
    """

    name: str
    address: str
    id: int
    away: bool
    is_owner: bool


@dataclass(frozen=True, slots=True)
class ObjectStatus(Readable):
    """A hosted object that is no optimizer.

    Attributes:
        name: Its name; empty for an anonymous object.
        class_name: Its class.
        parameters: Elements of its parameters.
        bytes: Bytes of its parameters and buffers; of what is in a snapshot, those that it takes besides the object.
        references: References of trainers.
        snapshot: Of what is in a snapshot, the name of that; empty for others.
    """

    name: str
    class_name: str
    parameters: int
    bytes: int
    references: int
    snapshot: str


@dataclass(frozen=True, slots=True)
class OptimizerStatus(Readable):
    """An optimizer.

    Attributes:
        name: Its name; empty for an anonymous one.
        class_name: Its class.
        version: Number of its steps since it was first made.
        parameters: Elements of its parameters.
        policy: When gradients count, as Python shows it; empty if every step is applied at once.
        members: Trainers that use it.
        waiting_for: The trainers that a round waits for now, up to 16; or "more trainers to join".
        lr: The learning rate of each parameter group, up to 16; empty if there is none.
        steps_per_second: Its steps per second over the last ten seconds, or over longer for slower steps.
        staleness_p50: Half of its last 512 steps were not staler, in steps; null if none had read parameters here.
        staleness_p99: 99 % of its last 512 steps were not staler, in steps; null as above.
        owners: The owners that its rounds are over, if there are several.
        durable_version: Its steps up to this version are on the disk; null if the owner has no log.
    """

    name: str
    class_name: str
    version: int
    parameters: int
    policy: str
    members: int
    waiting_for: tuple[str, ...]
    lr: tuple[float, ...]
    steps_per_second: float
    staleness_p50: int | None
    staleness_p99: int | None
    owners: tuple[str, ...]
    durable_version: int | None


@dataclass(frozen=True, slots=True)
class LogStatus(Readable):
    """The log of an owner (`--durability`), and how far it is on the disk.

    Attributes:
        mode: `always`, or `interval:SECONDS`.
        state: `writable`; `full` if the last record could not be written, so that what would change something is
            refused until there is room; or `failed` if nothing can be written until the owner starts again.
        why: Why it cannot be written; empty if it can.
        position: Where it ends, in bytes since its beginning.
        synced: The position up to which it is on the disk.
        unsynced_records: Records that are not on the disk yet.
        unsynced_bytes: Their bytes.
        unsynced_seconds: Seconds since the first of them was written.
        bytes: Bytes of its files in use.
        checkpoint_bytes: Bytes of it since the newest checkpoint.
    """

    mode: str
    state: str
    why: str
    position: int
    synced: int
    unsynced_records: int
    unsynced_bytes: int
    unsynced_seconds: float
    bytes: int
    checkpoint_bytes: int


@dataclass(frozen=True, slots=True)
class TableStatus(Readable):
    """This owner's rows of an embedding table.

    Attributes:
        name: Its name.
        rows: Number of rows.
        bytes: Bytes in use by rows, by what the optimizer keeps for them, and by the map of ids.
        dim: Numbers in a row.
        updates: Updates since the owner has started, as all that follow.
        looked_up: Ids that were looked up: in a look-up of rows each once, in bags as often as they are there.
        added: Rows that came into being because their ids were looked up.
        refused: Ids that training has looked up and that were not admitted.
        missing: Ids without a row that were only read.
        loaded: Rows that came into being because they were put or loaded.
        expired: Rows that were removed because nobody had looked them up for long.
        evicted: Rows that were removed to make room.
        removed: Rows that were removed by a program.
        gradients: Ids that backwards have brought gradients for, as often as programs have given them.
        updated: Rows that steps have updated.
        late: Rows that had gone when a gradient for them was to be applied.
    """

    name: str
    rows: int
    bytes: int
    dim: int
    updates: int
    looked_up: int
    added: int
    refused: int
    missing: int
    loaded: int
    expired: int
    evicted: int
    removed: int
    gradients: int
    updated: int
    late: int


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
class QuotaStatus(Readable):
    """What is used of something that has a quota, or may have one.

    Attributes:
        section: Whose it is: `identity.NAME`, `namespace.NAME` or `all`, as in the file of quotas.
        name: The quota, such as `object_bytes`.
        used: How much is used; of rates, in the last ten seconds.
        quota: How much may be used; null if there is no quota.
    """

    section: str
    name: str
    used: float
    quota: float | None


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
