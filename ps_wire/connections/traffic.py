"""Traffic: how many bytes crossed a kind of connection."""

from __future__ import annotations


class Traffic:
    """Counts bytes, on one event loop; all connections of a kind may share one.

    Attributes:
        received: Bytes of whole messages that came, tensors included.
        sent: Bytes of messages that left.
    """

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
