"""Writes a checkpoint of an owner when a trainer or operator asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_wire.v1.operations_pb2 import CheckpointReply


class CheckpointWriter:
    """Holds the function that writes checkpoints: none until the server has opened the data directory."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._write: Callable[[], CheckpointReply] | None = None

    def use(self, write: Callable[[], CheckpointReply]) -> None:
        """Registers the function. It is called in any thread, and blocks until the checkpoint is written."""
        self._write = write

    def write_now(self) -> CheckpointReply:
        """Writes a checkpoint while the owner goes on. Blocks meanwhile. Raises a `PsError` if it cannot be written."""
        if self._write is None:
            raise InvalidArgumentError(
                f"owner {self._owner!r} has no directory for checkpoints: start it with ps-service serve --data-dir"
            )
        return self._write()
