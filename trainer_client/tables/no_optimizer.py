"""What a table has in the place of its optimizer for those who may only read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ps_wire.errors import PermissionDeniedError


class NoOptimizer:
    """Raises, whatever is asked of it, the error that the owner has given when it was asked for the optimizer."""

    everywhere: Any = None

    def __init__(self, error: PermissionDeniedError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error

    def __repr__(self) -> str:
        return f"<no optimizer: {self._error}>"
