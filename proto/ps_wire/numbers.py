"""A set of positive integers that is nearly contiguous, kept in little memory."""

from __future__ import annotations

from collections.abc import Iterable


class SeenNumbers:
    """Remembers which of the numbers 1, 2, 3 … have been seen.

    All numbers up to `floor` have been seen; later ones stand in a set until the gap before them closes, so that
    memory grows with the numbers in flight and not with the life of a session.

    Args:
        most: How many numbers may stand above a gap. When there are more, the gap is so old that nothing will close it,
            and its numbers are taken for seen.
    """

    __slots__ = ("_above", "_holes", "_most", "floor")

    def __init__(self, most: int = 65_536) -> None:
        self.floor = 0
        self._above: set[int] = set()
        self._holes: set[int] = set()
        self._most = most

    def add(self, number: int) -> None:
        if number <= self.floor:
            self._holes.discard(number)
            return
        self._above.add(number)
        if len(self._above) > self._most:
            # Half of them at once, so that sorting is rare.
            older = sorted(self._above)[: self._most // 2]
            self.floor = older[-1]
            self._above.difference_update(older)
        while self.floor + 1 in self._above:
            self.floor += 1
            self._above.remove(self.floor)

    def discard(self, number: int) -> None:
        """Forgets that a number was seen; meant for a few."""
        if number <= self.floor:
            self._holes.add(number)
        else:
            self._above.discard(number)

    @property
    def above(self) -> list[int]:
        """Those that were seen above `floor`, in order."""
        return sorted(self._above)

    def copy(self) -> SeenNumbers:
        """The same numbers, which no longer change with these."""
        return SeenNumbers.of(self.floor, self._above, self._holes, self._most)

    @property
    def holes(self) -> list[int]:
        """Those up to `floor` that were not seen, in order."""
        return sorted(self._holes)

    @classmethod
    def of(cls, floor: int, above: Iterable[int], holes: Iterable[int] = (), most: int = 65_536) -> SeenNumbers:
        """The numbers up to `floor` but for some, and some above."""
        made = cls(most)
        made.floor = floor
        made._holes.update(holes)
        for number in above:
            made.add(number)
        return made

    def __contains__(self, number: int) -> bool:
        return number in self._above or (number <= self.floor and number not in self._holes)

    def __repr__(self) -> str:
        return f"<SeenNumbers 1..{self.floor} and {len(self._above)} above>"
