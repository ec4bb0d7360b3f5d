"""Tells whether a call has changed what is in the state of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from ps_wire.codec.values import Encoder

if TYPE_CHECKING:
    import torch

    from ps_service.hosting.objects import HostedObject


class Marks(NamedTuple):
    """How often hosted code has written to the parameters of a module, which of them are trained, its buffers with
    their versions, and the extra states of its parts, encoded."""

    writes: int
    trained: list[bool]
    buffers: list[tuple[torch.Tensor, int]]
    extra: list[bytes]

    def same_buffers(self, other: Marks) -> bool:
        """Whether no buffer was written to or replaced."""
        return len(self.buffers) == len(other.buffers) and all(
            one is another and version == later
            for (one, version), (another, later) in zip(self.buffers, other.buffers, strict=True)
        )


def marks_of(hosted: HostedObject) -> Marks:
    """The marks of a module now."""
    module: nn.Module = hosted.value
    return Marks(
        sum(state.writes for state in hosted.parameter_states),
        [each.requires_grad for each in hosted.parameters.values()],
        [(each, each._version) for each in module.buffers()],
        [_encoded(each.get_extra_state()) for each in module.modules() if _has_extra_state(each)],
    )


def _has_extra_state(part: nn.Module) -> bool:
    return type(part).get_extra_state is not nn.Module.get_extra_state


def _encoded(state: object) -> bytes:
    return Encoder(None).encode(state).SerializeToString()
