"""Where Ray may place owners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ray.util.placement_group import get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ps_wire.errors import UnavailableError

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


@dataclass(frozen=True)
class Placement:
    """What each owner needs of its node.

    Attributes:
        cpus: Cores that Ray reserves.
        memory: Bytes of memory that Ray reserves; 0 for none.
        labels: Labels that its node must have.
        resources: Custom resources of its node that Ray reserves.
        strict: Whether no two owners may be on one node, even if they have to wait for another. Without it they are
            spread where that is possible.
    """

    cpus: float = 1.0
    memory: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    strict: bool = False

    def reserve(self, cluster: str, owners: int, seconds: float) -> PlacementGroup | None:
        """A node for each of so many owners, if they are to be on different ones. It is detached, because actors in a
        group that ends with its job would wait for ever. Raises `UnavailableError` if there are too few nodes."""
        if not self.strict:
            return None
        bundle = {"CPU": self.cpus, "memory": self.memory, **self.resources}
        group = placement_group(
            [{name: amount for name, amount in bundle.items() if amount}] * owners,
            strategy="STRICT_SPREAD",
            name=_group_name(cluster),
            lifetime="detached",
            bundle_label_selector=[dict(self.labels)] * owners if self.labels else None,
        )
        if not group.wait(seconds):
            remove_placement_group(group)
            raise UnavailableError(
                f"Ray has no {owners} nodes with {bundle} and the labels {dict(self.labels)} within {seconds:g} s"
            )
        return group

    def options(self, group: PlacementGroup | None, index: int) -> dict[str, Any]:
        """The options of the actor of an owner."""
        options: dict[str, Any] = {"num_cpus": self.cpus, "resources": dict(self.resources) or None}
        if self.memory:
            options["memory"] = self.memory
        if group is not None:
            return options | {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, index)}
        if self.labels:
            options["label_selector"] = dict(self.labels)
        return options | {"scheduling_strategy": "SPREAD"}


def release(cluster: str) -> None:
    """Gives back what `reserve` has reserved, if anything."""
    try:
        group = get_placement_group(_group_name(cluster))
    except ValueError:
        return
    remove_placement_group(group)


def _group_name(cluster: str) -> str:
    return f"ps-service/{cluster}"
