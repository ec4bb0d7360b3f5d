"""What a table has in the place of its optimizer for those who may only read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ps_wire.errors import PermissionDeniedError


class NoOptimizer:
    """Raises, whatever is asked of it, the error that the owner has given when it was asked for the optimizer."""

    everywhere: Any = None
    follow: Any = None

    def __init__(self, error: PermissionDeniedError) -> None:
        self._error = error

    def take_marks(self, marks: Mapping[str, int]) -> None:
        """As an optimizer; there is nothing to step."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error

    def __repr__(self) -> str:
        return f"<no optimizer: {self._error}>"
