"""What a request has done already when it has to begin again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from ps_service.training.outcomes import Outcome


class Progress:
    """The finished parts of a backward request.

    A request that runs on the event loop stops where it would have to wait, and continues there in a thread.

    Attributes:
        of_inputs: The gradients of the inputs of each call whose backward has run.
        seconds: How long each of these backwards has kept its thread busy.
        versions: The versions of the optimizers that have stepped.
        pushed: What became of a push whose reply is not written yet.
    """

    __slots__ = ("of_inputs", "pushed", "seconds", "versions")

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.of_inputs: list[list[torch.Tensor | None]] = []
        self.versions: list[int] = []
        self.pushed: Outcome | None = None
