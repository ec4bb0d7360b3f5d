"""The form of a record: a fixed header, a frame, and the payload if it is sent on the socket."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ps_wire.v1.frames_pb2 import Frame

HEADER: Final = struct.Struct("<BIIQ")
"""Kind of the record, length of the frame, number of a segment of shared memory, length of the payload."""

_pack: Final = HEADER.pack

INLINE: Final = 0
"""Kind of a record whose payload follows its frame. Other kinds have no payload on the socket."""

END: Final = 5
"""Kind of the last record: the side that sends it has closed the connection."""


def inline_record(frame: Frame, payload_bytes: int) -> bytes:
    """The beginning of a record, up to its payload."""
    data = frame.SerializeToString()
    return _pack(INLINE, len(data), 0, payload_bytes) + data
