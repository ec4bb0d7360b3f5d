"""A set of positive integers that is nearly contiguous, kept in little memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise


class SeenNumbers:
    """Remembers which of the numbers 1, 2, 3 … have been seen.

    All numbers up to `floor` have been seen, except the holes. Later ones are kept in a set until the gap before them
    closes, so that memory grows with the numbers in flight and not with the age of a session. When there are more than
    `most` above a gap, the floor rises over the gap, whose numbers become holes. As many holes are kept; older ones
    count as seen.
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
        """Raises the floor over the older half of the numbers above it, so that sorting is rare."""
        older = sorted(self._above)[: self._most // 2]
        missing: list[int] = []
        # From the latest down, so that a trainer that skips a billion numbers does not cause a billion holes.
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
        """Marks all numbers below `before` as seen, except those in `but`, which stay as they are."""
        if but or self._holes:
            unseen = sorted(number for number in set(but) if 0 < number < before and number not in self)[-self._most :]
            self._holes = {*unseen, *(hole for hole in self._holes if hole >= before)}
        if before - 1 > self.floor:
            self.floor = before - 1
            if self._above:
                self._above = {number for number in self._above if number > self.floor}
                self._close()

    def discard(self, number: int) -> None:
        """Marks a number as not seen; meant for few numbers."""
        if number <= self.floor:
            self._holes.add(number)
        else:
            self._above.discard(number)

    @property
    def above(self) -> list[int]:
        """The seen numbers above `floor`, in order."""
        return sorted(self._above)

    def copy(self) -> SeenNumbers:
        """A copy of the set."""
        return SeenNumbers.of(self.floor, self._above, self._holes, self._most)

    @property
    def holes(self) -> list[int]:
        """The numbers up to `floor` that were not seen, in order."""
        return sorted(self._holes)

    @classmethod
    def of(cls, floor: int, above: Iterable[int], holes: Iterable[int] = (), most: int = 65_536) -> SeenNumbers:
        """The set of the numbers up to `floor` except `holes`, and those in `above`."""
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
