"""The modes: when gradients count, how they are encoded, and what trainers read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import trainer_client as tc
from examples.mpi_ps.settings import Settings


@dataclass(frozen=True)
class Mode:
    """One way to train.

    Attributes:
        policy: When gradients count: `sync`, `async` or `any` (a step for as many gradients as there are trainers, from
            any of them).
        compress: The part of each gradient that is sent; None for all of it.
        error_feedback: Whether the rest is added to the next gradient.
        reads: Whether parameters are all from between the same two steps.
        local: How trainers take steps of their own, and push differences; None if they push gradients.
    """

    policy: Literal["sync", "async", "any"]
    compress: float | None = None
    error_feedback: bool = True
    reads: Literal["consistent", "inconsistent"] = "consistent"
    local: tc.LocalSGD | tc.DiLoCo | None = None

    def made_for(self, settings: Settings) -> tc.policies.Policy:
        """The policy itself."""
        if self.policy == "sync":
            return tc.policies.Sync(settings.trainers, "mean")
        return tc.policies.Async() if self.policy == "async" else tc.policies.Quorum(settings.trainers, reduce="mean")

    def learning_rate(self, settings: Settings) -> float:
        """A step for one gradient is as many times smaller as there are more steps."""
        return settings.lr / settings.trainers if self.policy == "async" else settings.lr


MODES: Final[dict[str, Mode]] = {
    "sync": Mode("sync"),
    "async": Mode("async"),
    "async, inconsistent": Mode("async", reads="inconsistent"),
    "n of any": Mode("any"),
    "n of any, inconsistent": Mode("any", reads="inconsistent"),
    "sync, top 1 %": Mode("sync", compress=0.01),
    "async, top 1 %": Mode("async", compress=0.01),
    "sync, top 1 %, no feedback": Mode("sync", compress=0.01, error_feedback=False),
    "local SGD, every 10": Mode("sync", local=tc.LocalSGD(10)),
    "DiLoCo, every 10": Mode("sync", local=tc.DiLoCo(10)),
}
"""All modes, by the name in the table."""
