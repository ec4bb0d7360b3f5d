"""Applies the changes that hooks and autograd functions of a call make to its modules during a backward."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.hosting.bound_copy import BoundCopy


class LateRun:
    """Lends a bound copy that the graph of its call refers to again while a backward runs.

    Args:
        bound_copy: The bound copy.
        name: Name of the module, for error messages.
    """

    def __init__(self, bound_copy: BoundCopy, name: str) -> None:
        self._bound_copy = bound_copy
        self._name = name

    def __enter__(self) -> None:
        self._bound_copy.resume()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = self._bound_copy.pause()
        if failed is not None and error is None:
            raise InvalidArgumentError(
                f"a backward has changed {self._name}, and the changes cannot be applied to the hosted object: "
                f"{failed!r}"
            )
