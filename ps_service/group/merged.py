"""The members of a group, as the keepers of its directory tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.group.registers import LISTED_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ps_service.group.registers import Entry


class MergedEntries:
    """What several keepers have told last. Of each name the entry with the highest epoch counts.

    A keeper that is not heard of for `LISTED_SECONDS` does not count any more, unless none is. Where keepers are is not
    forgotten: two that have moved would never find each other again.
    """

    def __init__(self) -> None:
        self._told: dict[str, Sequence[Entry]] = {}
        self._heard: dict[str, float] = {}
        self._keepers: dict[str, Entry] = {}

    def hear(self, keeper: str, now: float, entries: Iterable[Entry] | None) -> None:
        """A keeper has answered; None: it has the entries that it had."""
        self._heard[keeper] = now
        if entries is not None:
            self._told[keeper] = tuple(entries)
            for entry in self._told[keeper]:
                known = self._keepers.get(entry.keeper)
                if entry.keeper and (known is None or _counts_more(entry, known)):
                    self._keepers[entry.keeper] = entry

    def entries(self, now: float) -> list[Entry]:
        """The members that are not gone, in the order of their numbers."""
        entries = [each for each in self._latest(now) if not each.gone]
        return sorted(entries, key=lambda entry: (entry.id or 0, entry.name))

    @property
    def addresses(self) -> dict[str, str]:
        """Where the keepers are that have told of themselves, by their names. One that has ended is looked for where it
        was."""
        return {name: entry.address for name, entry in self._keepers.items()}

    def _latest(self, now: float) -> Iterable[Entry]:
        heard = {keeper for keeper, when in self._heard.items() if now - when < LISTED_SECONDS} or self._told.keys()
        found: dict[str, Entry] = {}
        for keeper in heard & self._told.keys():
            for entry in self._told[keeper]:
                known = found.get(entry.name)
                if known is None or (entry.epoch, entry.gone) > (known.epoch, known.gone):
                    found[entry.name] = entry
        return found.values()


def _counts_more(entry: Entry, known: Entry) -> bool:
    """Whether an entry tells better where a keeper is than the one that was known."""
    return (not entry.gone, entry.epoch) >= (not known.gone, known.epoch)
