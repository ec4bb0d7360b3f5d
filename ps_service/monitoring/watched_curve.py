"""What the owner that serves the page knows of one curve of an owner of its group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ps_service.measures.curve import Points, first_changed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ps_wire.v1.operations_pb2 import Curve

_WORDS: Final = {"finite": "count", "low": "min", "high": "max"}
"""How fields of points are called for programs."""


class WatchedCurve:
    """One curve of an owner, with the `number` that it has there. `ended` says that its optimizer is gone."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.optimizer = self.class_name = self.name = ""
        self.seen = 0
        self.width = 1
        self.ended = False
        self.points: Final[tuple[list[Any], ...]] = tuple([] for _ in Points._fields)

    def take(self, told: Curve) -> None:
        """Takes note of what was not known. Does nothing if what stands before it is not known either."""
        if told.start > len(self.points[0]):
            return
        self.optimizer, self.class_name, self.name = told.optimizer, told.class_name, told.name
        self.seen, self.width = told.seen, told.width
        for column, name in zip(self.points, Points._fields, strict=True):
            fresh = getattr(told, name)
            column[told.start :] = (round(each, 3) for each in fresh) if name == "time_seconds" else fresh

    @property
    def title(self) -> str:
        """What its optimizer is called."""
        return self.optimizer or f"(anonymous {self.class_name.rpartition('.')[2]})"

    def rows(self) -> Iterator[dict[str, Any]]:
        """The points, by field. A mean or limit that there is not is None."""
        for row in zip(*self.points, strict=True):
            yield dict(zip(Points._fields, map(_finite, row), strict=True))

    def as_plain(self) -> dict[str, Any]:
        """It with all points, as /values.json has it."""
        about = {"optimizer": self.optimizer, "class_name": self.class_name, "value": self.name}
        points = [{_WORDS.get(name, name): value for name, value in row.items()} for row in self.rows()]
        return {**about, "ended": self.ended, "reported": self.seen, "points": points}

    def news(self, seen: int) -> list[Any]:
        """What a page does not know that has seen so many values, in the order that `static/curves.js` has."""
        start = first_changed(seen, self.seen)
        rows = [list(map(_finite, row)) for row in zip(*(column[start:] for column in self.points), strict=True)]
        return [self.number, self.optimizer, self.title, self.name, self.seen, start, rows]


def _finite(value: Any) -> Any:
    return value if math.isfinite(value) else None
