"""Ports of the loopback for servers that are started later."""

from __future__ import annotations

import socket
from typing import Final

LOOPBACK: Final = "127.0.0.1"


class ReservedPort:
    """A port that the system gives to nobody who asks for any, until this object is gone.

    A server that reuses addresses can listen there, as those of gRPC and of torch's store do, and do so again after
    it has ended.

    Args:
        number: The port; 0 for any that is free. Raises `OSError` if somebody listens there.

    Attributes:
        number: The port.
        address: Its host and port.
    """

    def __init__(self, number: int = 0) -> None:
        # Bound, and not listening: connections are refused.
        self._bound = socket.socket()
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._bound.bind((LOOPBACK, number))
        except OSError as error:
            self._bound.close()
            raise OSError(f"cannot listen on {LOOPBACK}:{number}: {error.strerror}") from None
        self.number: Final[int] = self._bound.getsockname()[1]
        self.address: Final = f"{LOOPBACK}:{self.number}"

    def close(self) -> None:
        """Gives the port back."""
        self._bound.close()
