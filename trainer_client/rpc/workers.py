"""Name and number of a member of a group."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ps_wire.codec.records import by_value
from ps_wire.errors import InvalidArgumentError

_NAME: Final = re.compile(r"[\w.:-]+")
_TOO_LONG: Final = 128


@by_value
@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A member of a group.

    Attributes:
        name: Its name.
        id: Its rank, or the number that the directory gave it.

    Raises:
        InvalidArgumentError: The name or the number is not one that a member may have.
    """

    name: str
    id: int

    def __post_init__(self) -> None:
        check_name(self.name)
        if not isinstance(self.id, int) or isinstance(self.id, bool):
            raise InvalidArgumentError(f"the id of a worker is a number, not a {type(self.id).__name__}")
        if self.id < 0:
            raise InvalidArgumentError(f"the id of a worker is not negative, unlike {self.id}")


def check_name(name: str) -> None:
    """Raises `InvalidArgumentError` if a name is empty or too long, or is not of letters, digits and `_.:-`."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"Worker name must be a string, not a {type(name).__name__}")
    if not name:
        raise InvalidArgumentError("Worker name must be non-empty")
    if len(name) >= _TOO_LONG:
        raise InvalidArgumentError(
            f"Worker name must be shorter than {_TOO_LONG} characters; {name[:20]}… has {len(name)}"
        )
    if _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(f"Worker name must match [A-Za-z0-9_.:-]+, unlike {name!r}")
