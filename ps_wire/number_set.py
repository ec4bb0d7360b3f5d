"""A set of positive integers that is nearly contiguous, kept in little memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise


class SeenNumbers:
    """Remembers which of the numbers 1, 2, 3 … have been seen.

    All numbers up to `floor` have been seen, but for the holes; later ones stand in a set until the gap before them
    closes, so that memory grows with the numbers in flight and not with the life of a session.

    Args:
        most: How many numbers may stand above a gap. When there are more, the floor rises over it, and its numbers
            become holes, of which as many are kept: older ones are taken for seen.
    """

    __slots__ = ("_above", "_holes", "_most", "floor")

    def __init__(self, most: int = 65_536) -> None:
        self.floor = 0
        self._above: set[int] = set()
        self._holes: set[int] = set()
        self._most = most

    def add(self, number: int) -> None:
        if number == self.floor + 1 and not self._above:
            self.floor = number
            return
        if number <= self.floor:
            self._holes.discard(number)
            return
        self._above.add(number)
        if len(self._above) > self._most:
            self._rise()
        self._close()

    def _close(self) -> None:
        while self.floor + 1 in self._above:
            self.floor += 1
            self._above.remove(self.floor)

    def _rise(self) -> None:
        """Lifts the floor over the older half of the numbers above it, so that sorting is rare."""
        older = sorted(self._above)[: self._most // 2]
        missing: list[int] = []
        # From the latest down: who skips a billion numbers must not cost us a billion holes.
        for before, number in reversed(list(pairwise([self.floor, *older]))):
            missing.extend(range(max(before + 1, number - self._most + len(missing)), number))
            if len(missing) >= self._most:
                break
        self._holes.update(missing)
        if len(self._holes) > self._most:
            self._holes = set(sorted(self._holes)[-self._most :])
        self.floor = older[-1]
        self._above.difference_update(older)

    def cover(self, before: int, but: Iterable[int]) -> None:
        """All numbers below one have been seen; of some it is not said, and what was known of them stays so."""
        if but or self._holes:
            unseen = sorted(number for number in set(but) if 0 < number < before and number not in self)[-self._most :]
            self._holes = {*unseen, *(hole for hole in self._holes if hole >= before)}
        if before - 1 > self.floor:
            self.floor = before - 1
            if self._above:
                self._above = {number for number in self._above if number > self.floor}
                self._close()

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
