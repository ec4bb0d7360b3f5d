"""Ports of the loopback that belong to one test, also while nothing listens there."""

from __future__ import annotations

import os
import socket
import weakref


class ReservedPort:
    """Keeps a port from all who ask the system for any, until it is closed; leaving its context closes it.

    A port that was free a moment ago may be another process's by now. At this one a server still may listen, if it
    reuses addresses as those of gRPC, asyncio and torch's store do. While none does, connections are refused.

    Attributes:
        close: Gives the port back; it is also given back with this object.
        number: The port.
        address: Host and port.
    """

    def __init__(self) -> None:
        # A socket that is bound and does not listen.
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        self.number: int = bound.getsockname()[1]
        self.address = f"127.0.0.1:{self.number}"
        self.close = weakref.finalize(self, os.close, bound.detach())

    def __enter__(self) -> ReservedPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
