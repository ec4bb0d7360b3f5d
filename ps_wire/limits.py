"""Limits: every length that comes over the wire is held against one of these before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20

PART_BYTES: Final = MIB
"""Payload bytes per frame. Large enough to be fast, small enough that a small call behind one hardly waits."""

MAX_FRAME_BYTES: Final = 64 * MIB
"""Largest single frame or unary message: one part, and a message whose values are not tensors."""

MAX_DEPTH: Final = 24
"""Deepest nesting of lists, tuples and dicts. Each level costs three of the hundred that protobuf allows."""

MAX_NESTING: Final = 64
"""Most requests that may be nested in each other. Code that calls itself for ever is stopped here."""

SMALL_BYTES: Final = 64 * 1024
"""Payloads up to this size count towards no budget in bytes: how many there are is bounded by `max_in_flight`."""

MAX_SEGMENT_BYTES: Final = 512 * MIB
"""Shared memory of one direction of a shared-memory connection; it is only used as far as messages need it."""

IDLE_SECONDS: Final = 5.0
"""How long memory for messages stays unused before it is given back to the system."""

PROTOCOL: Final = 1
"""Version of the protocol of a session, checked in the handshake."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one session may ask of an owner; the owner tells its trainers in the handshake.

    Attributes:
        max_message_bytes: Largest payload of one request or reply.
        max_in_flight: Requests of one session that may run or wait at once.
        lease_seconds: How long a session outlives its broken stream.
        max_segment_bytes: How much shared memory each direction of a connection may use; 0 offers no shared memory.
        max_result_bytes: Largest result of one operation of torch that a trainer asks for by name, or as a layer's
            forward. Elements that are only repeated, as by `expand`, count.
        max_object_bytes: Largest module of torch that a trainer may make; 0 is half of the machine's memory.
        max_session_bytes: Payloads of one session's requests that may be in flight, and as many bytes of its answers.
            A message that is larger comes through alone.
        max_owner_bytes: The same for all sessions together. Above it those are paused that hold most.
        max_context_bytes: What the open contexts of one session, and the results that it leaves on the owner, may hold
            before it can begin no more; 0 is half of the machine's memory.
        max_context_seconds: How long a context may be open without being used by any request, before the owner ends
            it; 0 for as long as its session lives.
    """

    max_message_bytes: int = 1024 * MIB
    max_in_flight: int = 1024
    lease_seconds: float = 30.0
    max_segment_bytes: int = MAX_SEGMENT_BYTES
    max_result_bytes: int = 1024 * MIB
    max_object_bytes: int = 0
    max_session_bytes: int = 256 * MIB
    max_owner_bytes: int = 2048 * MIB
    max_context_bytes: int = 0
    max_context_seconds: float = 3600.0
