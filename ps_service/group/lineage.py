"""The starts of an owner whose state is one: which continue which."""

from __future__ import annotations

from typing import Final, NamedTuple


class Lineage(NamedTuple):
    """A start of an owner, by its `incarnation`, and the `earlier` ones whose state it continues, newest first. Of a
    member without a data directory both are empty: nothing continues it."""

    incarnation: str = ""
    earlier: tuple[str, ...] = ()

    def continues(self, other: Lineage) -> bool:
        """Whether this is a later start of the state of another one."""
        return bool(other.incarnation) and other.incarnation in self.earlier


NO_LINEAGE: Final = Lineage()
