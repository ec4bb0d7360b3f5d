"""A set of positive integers that is nearly contiguous, kept in little memory."""

from __future__ import annotations


class SeenNumbers:
    """Remembers which of the numbers 1, 2, 3 … have been seen.

    All numbers up to `floor` have been seen; later ones stand in a set until the gap before them closes, so that
    memory grows with the numbers in flight and not with the life of a session.

    Args:
        most: How many numbers may stand above a gap. When there are more, the gap is so old that nothing will close it,
            and its numbers are taken for seen.
    """

    __slots__ = ("_above", "_most", "floor")

    def __init__(self, most: int = 65_536) -> None:
        self.floor = 0
        self._above: set[int] = set()
        self._most = most

    def add(self, number: int) -> None:
        if number <= self.floor:
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

    def __contains__(self, number: int) -> bool:
        return number <= self.floor or number in self._above

    def __repr__(self) -> str:
        return f"<SeenNumbers 1..{self.floor} and {len(self._above)} above>"
