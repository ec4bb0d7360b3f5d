"""Tells whether a call has changed what is in the state of a module."""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from ps_wire.codec.values import Encoder

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from ps_service.hosting.objects import HostedObject


class Marks(NamedTuple):
    """How often hosted code has written to the parameters of a module, which of them are trained, its buffers with
    their versions, and the extra states of its parts, encoded."""

    writes: int
    trained: list[bool]
    buffers: list[tuple[torch.Tensor | None, int]]
    extra: list[object]

    def same_buffers(self, other: Marks) -> bool:
        """Whether no buffer was written to or replaced."""
        return len(self.buffers) == len(other.buffers) and all(
            one is another and version == later
            for (one, version), (another, later) in zip(self.buffers, other.buffers, strict=True)
        )


class _Parts:
    """The parts of a module, of which most have neither buffers nor an extra state."""

    def __init__(self, module: nn.Module) -> None:
        parts = list(module.modules())
        self._children = [each._modules for each in parts]
        self._found = _values(self._children)
        self._buffers = [each._buffers for each in parts]
        self.extra = [each for each in parts if type(each).get_extra_state is not nn.Module.get_extra_state]

    @property
    def are_current(self) -> bool:
        """Whether the module still has these parts, and no others."""
        now = _values(self._children)
        return len(now) == len(self._found) and all(map(is_, now, self._found))

    def buffers(self) -> list[torch.Tensor | None]:
        """All buffers, also those that are None; one that is there twice is named twice."""
        return _values(filter(None, self._buffers))


_PARTS: Final[WeakKeyDictionary[HostedObject, _Parts]] = WeakKeyDictionary()
"""Of hosted modules. To look for them takes longer than all else."""


def marks_of(hosted: HostedObject) -> Marks:
    """The marks of a module now."""
    parts = _PARTS.get(hosted)
    if parts is None or not parts.are_current:
        parts = _PARTS[hosted] = _Parts(hosted.value)
    return Marks(
        sum([state.writes for state in hosted.parameter_states]),
        [each.requires_grad for each in hosted.parameters.values()],
        [(each, 0 if each is None else each._version) for each in parts.buffers()],
        [_extra(each) for each in parts.extra],
    )


def _values(dicts: Iterable[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, dicts)))


def _extra(part: nn.Module) -> object:
    """The extra state of a part, encoded. If that cannot be done, it is like no other: what has become of it is not
    known."""
    try:
        return Encoder(None).encode(part.get_extra_state()).SerializeToString()
    except Exception:  # hosted code may raise anything
        return object()
