"""The objects that torch keeps in place of the tensors that a forward saves for its backward."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from ps_service.memory.held import Share
    from ps_service.parameters.state import Pin


class Kept:
    """A tensor that a forward saved for its backward.

    It is kept detached, because a node that saves its own output would otherwise never be freed. It is kept with its
    version, because torch does not look for writes in between where such hooks are set. The share counts its bytes as
    long as it is kept; there is none if they are counted elsewhere.
    """

    __slots__ = ("_share", "_tensor", "_version")

    def __init__(self, tensor: torch.Tensor, share: Share | None = None) -> None:
        self._tensor = tensor.detach()
        self._version = tensor._version
        self._share = share

    def unpack(self) -> torch.Tensor:
        """The tensor. If it was written to since it was saved, that is a `RuntimeError` with torch's own message."""
        if self._tensor._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{self._tensor.dtype} of shape {tuple(self._tensor.shape)} is at version {self._tensor._version}; "
                f"expected version {self._version} instead"
            )
        return self._tensor


class Watch:
    """Notices that other code writes to a storage while a call uses it. `seen` is the number of writes when the call
    began, or when it last wrote to the storage itself."""

    __slots__ = ("pin", "seen")

    def __init__(self, pin: Pin) -> None:
        self.pin = pin
        self.seen = pin.written


class Pinned:
    """A saved parameter, or a part of one; keeps its storage pinned as long as torch keeps it. It is kept as an alias
    with a version of its own: a step that moves the parameter counts in the parameter's version. The watches notice
    writes of other calls to its storage."""

    __slots__ = ("_counted", "_is_written", "_tensor", "_tokens", "_version", "_watches")

    def __init__(self, tensor: torch.Tensor, watches: Sequence[Watch]) -> None:
        self._tensor = tensor.data
        # It shares the version of the parameter, until the code of the call has ended.
        self._counted: torch.Tensor | None = tensor.detach()
        self._version = tensor._version
        self._is_written = False
        self._watches = watches
        self._tokens = [watch.pin.token for watch in watches]

    def settle(self) -> None:
        """Notes whether the call itself has written to it since it was saved. Called when steps may come."""
        if self._counted is not None:
            self._is_written = self._counted._version != self._version
            self._counted = None

    def unpack(self) -> torch.Tensor:
        """The tensor. If it was written to since it was saved, that is a `RuntimeError`."""
        counted = self._counted
        is_written = self._is_written if counted is None else counted._version != self._version
        if is_written or any(watch.pin.written != watch.seen for watch in self._watches):
            by = "the call itself" if is_written else "another call that ran on its module. Run the pass again"
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"a parameter of shape {tuple(self._tensor.shape)}, by {by}"
            )
        return self._tensor


unpack: Final = methodcaller("unpack")
