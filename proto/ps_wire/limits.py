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

MAX_SEGMENT_BYTES: Final = 512 * MIB
"""Shared memory of one direction of a same-host lane; it is only used as far as messages need it."""

PROTOCOL: Final = 1
"""Version of the conversation, checked in the handshake."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one session may ask of an owner; the owner tells its trainers in the handshake.

    Attributes:
        max_message_bytes: Largest payload of one request or reply.
        max_in_flight: Requests of one session that may run or wait at once.
        lease_seconds: How long a session outlives its broken stream.
        max_segment_bytes: How much shared memory each direction of a same-host lane may use; 0 offers no lane.
    """

    max_message_bytes: int = 1024 * MIB
    max_in_flight: int = 1024
    lease_seconds: float = 30.0
    max_segment_bytes: int = MAX_SEGMENT_BYTES
