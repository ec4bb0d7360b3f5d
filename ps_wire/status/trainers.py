"""Who works with an owner: trainers, their open passes, and members of the group."""

from __future__ import annotations

from dataclasses import dataclass

from ps_wire.status.reading import Readable


@dataclass(frozen=True, slots=True)
class TrainerStatus(Readable):
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
