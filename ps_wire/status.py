"""The status of an owner, as `Client.status`, `ps-service status --json` and `/status.json` give it.

docs/status.md is made from the docstrings of this module. The fields have the names of those of `StatusReply` in
proto/ps_wire/v1/operations.proto.
"""

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


class _Read:
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


@dataclass(frozen=True, slots=True)
class TrainerStatus(_Read):
    """A trainer, or another member of the group, with a session on the owner.

    Attributes:
        id: The first eight hexadecimal digits of its id; followed by ~ and a number if several sessions share them.
        transport: Of its latest connection: `grpc`, `direct`, `shared_memory` or `unary`.
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
class PassStatus(_Read):
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
class ObjectStatus(_Read):
    """A hosted object that is no optimizer.

    Attributes:
        name: Its name; empty for an anonymous object.
        class_name: Its class.
        parameters: Elements of its parameters.
        bytes: Bytes of its parameters and buffers.
        references: References of trainers.
    """

    name: str
    class_name: str
    parameters: int
    bytes: int
    references: int


@dataclass(frozen=True, slots=True)
class OptimizerStatus(_Read):
    """An optimizer.

    Attributes:
        name: Its name; empty for an anonymous one.
        class_name: Its class.
        version: Number of its steps since it was first made.
        parameters: Elements of its parameters.
        policy: When gradients count, as Python shows it; empty if every step is applied at once.
        members: Trainers that use it.
        waiting_for: The trainers that a round waits for now, up to 16.
        lr: The learning rate of each parameter group, up to 16; empty if there is none.
        steps_per_second: Its steps per second over the last ten seconds, or over longer for slower steps.
        staleness_p50: Half of its last 512 steps were not staler, in steps; null if none had read parameters here.
        staleness_p99: 99 % of its last 512 steps were not staler, in steps; null as above.
        owners: The owners that its rounds are over, if there are several.
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


@dataclass(frozen=True, slots=True)
class TableStatus(_Read):
    """This owner's rows of an embedding table.

    Attributes:
        name: Its name.
        rows: Number of rows.
        bytes: Bytes in use by rows, by what the optimizer keeps for them, and by the map of ids.
        dim: Numbers in a row.
        updates: Updates since the owner has started.
    """

    name: str
    rows: int
    bytes: int
    dim: int
    updates: int


@dataclass(frozen=True, slots=True)
class OperationStatus(_Read):
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
class CommunicatorStatus(_Read):
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
class MemoryStatus(_Read):
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
class MemberStatus(_Read):
    """A member of the group whose directory the owner keeps.

    Attributes:
        name: Its name.
        address: Host and port of its owner.
        id: Its rank or number.
        away: Whether its process has no connection to the directory now.
    """

    name: str
    address: str
    id: int
    away: bool


@dataclass(frozen=True, slots=True)
class EventStatus(_Read):
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


@dataclass(frozen=True, slots=True)
class OwnerStatus(_Read):
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
        operations: Finished requests by operation.
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
        return lambda message: get(message) if message.HasField(name) else None
    if origin is dict:
        return lambda message: dict(get(message))
    if origin is tuple:
        of = typing.get_args(kind)[0]
        if issubclass(of, _Read):
            return lambda message: tuple(map(of.from_message, get(message)))
        return lambda message: tuple(get(message))
    return get
