"""Counts the bytes on one kind of connection."""

from __future__ import annotations


class Traffic:
    """Counts bytes; used on one event loop. All connections of a kind may share one.

    Attributes:
        received: Bytes of received messages, tensors included.
        sent: Bytes of sent messages, tensors included.
    """

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
