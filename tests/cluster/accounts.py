"""Checks that every version of the shared optimizer was reported to exactly one trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from examples.digits.cluster.messages import Step


def check(owner: str, steps: Iterable[Step], final: int, untold: int) -> None:
    """Holds the versions that trainers were told against the one that an owner has come to.

    Args:
        owner: Its name.
        steps: What all trainers have told.
        final: The version that the owner has come to.
        untold: How many versions may be missing: a trainer that is killed may not pass on one that it was told, and a
            pass that is lost with a killed owner may have made its step on the other one.

    Raises:
        AssertionError: A version was reported twice or never, or does not exist.
    """
    told = Counter(step.versions[owner] for step in steps)
    twice = sorted(version for version, times in told.items() if times > 1)
    assert not twice, f"{owner} told these versions more than once: {twice}"
    beyond = sorted(version for version in told if not 1 <= version <= final)
    assert not beyond, f"{owner} is at version {final} and told these: {beyond}"
    missing = sorted(set(range(1, final + 1)) - told.keys())
    assert len(missing) <= untold, f"{owner} reported versions {missing} to no trainer; there may be {untold} of these"
