"""Tells whether a call has changed what is in the state of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from ps_service.hosting.objects import HostedObject


class Marks(NamedTuple):
    """How often hosted code has written to the parameters of a module, and its buffers with their versions."""

    writes: int
    buffers: list[tuple[torch.Tensor, int]]

    def same_buffers(self, other: Marks) -> bool:
        """Whether no buffer was written to or replaced."""
        return len(self.buffers) == len(other.buffers) and all(
            one is another and version == later
            for (one, version), (another, later) in zip(self.buffers, other.buffers, strict=True)
        )


def marks_of(hosted: HostedObject) -> Marks:
    """The marks of a module now."""
    return Marks(
        sum(state.writes for state in hosted.parameter_states),
        [(each, each._version) for each in hosted.value.buffers()],
    )
