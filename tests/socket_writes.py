"""Notes what is written to Unix sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_wire.shared_memory.connection import UnixSocket

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


def noted_writes(patch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes of each write from now on, as a list that grows."""
    noted: list[int] = []
    write, write_with = UnixSocket.write, UnixSocket.write_with

    def of_pieces(sock: UnixSocket, pieces: Sequence[Any]) -> None:
        noted.append(sum(map(len, pieces)))
        write(sock, pieces)

    def with_descriptor(sock: UnixSocket, pieces: Sequence[Any], descriptor: int) -> None:
        noted.append(sum(map(len, pieces)))
        write_with(sock, pieces, descriptor)

    patch.setattr(UnixSocket, "write", of_pieces)
    patch.setattr(UnixSocket, "write_with", with_descriptor)
    return noted
