"""What a request has done already when it has to begin again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from ps_service.hosting.objects import HostedObject
    from ps_service.training.waiting_offers import Outcome


@dataclass(slots=True)
class Progress:
    """The finished parts of a backward or push, which stops on the event loop where it would have to wait, and goes on
    in a thread.

    Of each call whose backward has run, the gradients of its inputs, and the seconds for which it has kept its thread
    busy; the versions of the optimizers that have stepped, and their staleness, up to the last one that is not 0; what
    became of a push whose reply is not written yet, and the positions that it leaves out; and the modules that code of
    backwards has changed, as in `Record.backward`.
    """

    of_inputs: list[list[torch.Tensor | None]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    pushed: Outcome | None = None
    left_out: list[int] = field(default_factory=list)
    changed: dict[HostedObject, bool] = field(default_factory=dict)

    def note_staleness(self, of_last: int) -> None:
        """Notes that the step that led to the last version had a staleness."""
        self.staleness.extend([0] * (len(self.versions) - 1 - len(self.staleness)))
        self.staleness.append(of_last)
