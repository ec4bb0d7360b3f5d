"""Of which optimizer, over any number of owners, the one of this owner is a part."""

from __future__ import annotations

from typing import Final, NamedTuple

Digests = tuple[tuple[int, ...], ...]
"""The digests of parameters, by parameter group."""


class Spread(NamedTuple):
    """The parameters of all owners, in the groups of who has made the optimizer; none if they are all on this owner.

    It `is_named` if it was given its name, which its parts on other owners have, too. It `is_known` unless it is over
    several owners and was made by a trainer of a version that did not say which parameters there are.
    """

    groups: Digests = ()
    is_named: bool = False
    is_known: bool = True


WHOLE: Final = Spread()
