"""Actions of several trainers on one object that has a version: which of them it has, and in which order."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, Protocol

from tests.crash.events import Violation
from tests.crash.workloads.workload import same


class Reference(Protocol):
    """What the object should be. It can be copied deeply."""

    def apply(self, item: Any) -> None:
        """Does what an action has done."""

    def state(self) -> Any:
        """Its state, as the owner tells it."""


class Ordered:
    """A `reference` that follows the versions of an object on an owner."""

    def __init__(self, title: str, reference: Reference) -> None:
        self.title = title
        self.version = 0
        self.reference = reference

    def follow(
        self,
        version: int,
        state: Any,
        known: dict[int, Any],
        must: Sequence[Any],
        may: Sequence[Any],
        earliest: int = 0,
    ) -> list[Any]:
        """Follows to a version, and returns the items at versions that were not known. Versions are `known` of some
        items; of others it is only known that they must be there, or may be. Versions from `earliest` on may be gone,
        if it is not 0. Raises `Violation`."""
        lost = sorted(each for each in known if each > version)
        if lost and not (earliest and earliest <= lost[0]):
            raise Violation(f"{self.title} has version {version}: the acknowledged versions {lost} are lost")
        if version < self.version:
            raise Violation(f"{self.title} has version {version}, and had {self.version} before")
        old = sorted(each for each in known if each <= self.version)
        if old:
            raise Violation(f"{self.title} has given the versions {old} twice: {self.version} was checked before")
        places = [each for each in range(self.version + 1, version + 1) if each not in known]
        if len(must) > len(places) and not earliest:
            raise Violation(
                f"{self.title} has version {version}: of {len(must)} acknowledged actions without a version only "
                f"{len(places)} can be there"
            )
        if len(places) > len(must) + len(may):
            raise Violation(
                f"{self.title} has version {version}: the versions {places} are more than the {len(must)} actions that "
                f"have none and the {len(may)} in doubt: something was applied twice"
            )
        for items in _fillings(must, may, len(places), bool(earliest)):
            filled = known | dict(zip(places, items, strict=True))
            reference = copy.deepcopy(self.reference)
            for each in range(self.version + 1, version + 1):
                reference.apply(filled[each])
            if same(reference.state(), state):
                self.reference, self.version = reference, version
                return list(items)
        raise Violation(
            f"{self.title} has version {version}, but not the bits of its actions: expected (one of them) "
            f"{reference.state()}, found {state}"
        )

    def begin_at(self, version: int, reference: Reference) -> None:
        """Follows from there, unchecked."""
        self.version, self.reference = version, reference


def _fillings(must: Sequence[Any], may: Sequence[Any], places: int, is_lossy: bool) -> Any:
    """The orders in which places can be filled, so that all that must be there is."""
    numbers = range(len(must) + len(may))
    for order in itertools.permutations(numbers, places):
        if is_lossy or sum(each < len(must) for each in order) == len(must):
            yield [(*must, *may)[each] for each in order]
