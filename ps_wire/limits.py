"""Limits on messages; every length in a message is compared with one of them before memory is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20

PART_BYTES: Final = MIB
"""Payload bytes per frame. Large enough to be fast, small enough not to delay a small call behind it."""

MAX_FRAME_BYTES: Final = 64 * MIB
"""Largest frame without its payload, and largest unary message."""

GRPC_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES + MIB),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES + MIB),
    # A process that is stopped, or whose host has vanished, is noticed within fifteen seconds. A direct connection
    # beside the stream takes the last two of them: it is read to its end, and closed.
    ("grpc.keepalive_time_ms", 8_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Otherwise a minute, within which gRPC does not give up a connection whose other side acknowledges at least bytes.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Otherwise gRPC asks only a few times while no data is sent, and then leaves an idle stream alone.
    ("grpc.http2.max_pings_without_data", 0),
)
"""Options of gRPC on both sides."""

MAX_DEPTH: Final = 24
"""Deepest nesting of lists, tuples and dicts. Each level costs three of the hundred that protobuf allows."""

MAX_NESTING: Final = 64
"""Most requests that may be nested in each other. Stops endless recursion between owners."""

SMALL_BYTES: Final = 64 * 1024
"""Payloads up to this size count towards no budget in bytes; `max_in_flight` bounds their number."""

MAX_SEGMENT_BYTES: Final = 1024 * MIB
"""Most shared memory of one direction of a shared-memory connection; it is allocated as messages need it."""

IDLE_SECONDS: Final = 5.0
"""Seconds that memory for messages is unused before it is given back to the system."""

MAX_REPORTED_NAMES: Final = 64
"""Most values that are reported with one gradient, and most names of such values of one optimizer."""

MAX_REPORTED_NAME: Final = 128
"""Longest name of such a value, in characters."""

MAX_REPORTED_BYTES: Final = 64 * 1024
"""Most bytes of all values that are reported with one gradient."""

PROTOCOL: Final = 2
"""Version of the protocol of a session, checked in the handshake."""

GIVEN_UP: Final = "given up"
"""In the place of the incarnation in a Hello: the trainer has given up the session that the owner may have of it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an owner on its sessions. Trainers get those that they need in the handshake.

    Attributes:
        max_message_bytes: Largest payload of one request or reply.
        max_in_flight: Most requests of one session that run or wait.
        lease_seconds: Seconds that a session outlives its broken stream.
        max_segment_bytes: Most shared memory of each direction of a connection; 0 offers no shared memory.
        max_result_bytes: Largest result of a function or layer of torch. Elements that are only repeated, as by
            `expand`, count.
        max_object_bytes: Largest module of torch that a trainer may make; 0 is half of the machine's memory.
        max_session_bytes: Most payload bytes of one session's requests in flight, and as many bytes of its answers.
            A larger message is accepted alone.
        max_owner_bytes: The same for all sessions together. Above it, the sessions that hold most are paused.
        max_context_bytes: Most bytes of the open contexts of one session and its results that stay on the owner; 0 is
            half of the machine's memory.
        max_table_bytes: Most bytes of all tables; 0 is three quarters of the machine's memory.
        max_context_seconds: Seconds that a context may be open without a request that uses it, before the owner ends
            it; 0 is no limit.
        slow_call_seconds: Requests that run hosted code for longer are logged; 0 is none.
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
    max_table_bytes: int = 0
    max_context_seconds: float = 3600.0
    slow_call_seconds: float = 10.0
