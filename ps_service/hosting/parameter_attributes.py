"""Sets the attributes that code has set at the leaf of a parameter at the parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ps_service.hosting.parts import attribute_parts
from ps_service.hosting.structure import reaches
from ps_service.parameters.leaves import attributes

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ps_service.hosting.histories import Ending
    from ps_service.hosting.internals import Internals

_TORCHS: Final = "_dynamo"
"""Prefix of the names of attributes that torch's compiler sets for one tensor alone."""

_ABSENT: Final = object()


class AttributeWatch:
    """Notices the attributes that a run sets at leaves.

    Args:
        leaves: The leaves of the parameters.
        had_none: Whether the run has ended already, and the leaves had no attributes when it began.

    Attributes:
        refused: Indices of leaves and names of attributes that refer to objects of the run alone; they are not set at
            the parameters.
    """

    def __init__(self, leaves: Sequence[torch.Tensor], had_none: bool = False) -> None:
        self._leaves = leaves
        marked = [] if had_none else [(i, leaf) for i, leaf in enumerate(leaves) if leaf.__dict__]
        self._before = {i: attributes(leaf) for i, leaf in marked}
        self._set: list[tuple[int, str, Any]] = []
        self._removed: list[tuple[int, str]] = []
        self.refused: list[tuple[int, str]] = []

    def note(self, module: nn.Module, is_alias: Callable[[Any], bool]) -> None:
        """Notes the attributes at the end of the run.

        Args:
            module: The copy that it ran on.
            is_alias: Tells whether a value shares the memory of a parameter.
        """
        changed = [i for i, leaf in enumerate(self._leaves) if leaf.__dict__ or i in self._before]
        private = set(map(id, (*self._leaves, *module.modules()))) if changed else set()
        for i in changed:
            before, now = self._before.get(i, {}), attributes(self._leaves[i])
            self._removed += [(i, name) for name in before.keys() - now.keys()]
            for name, value in now.items():
                if before.get(name, _ABSENT) is value or name.startswith(_TORCHS):
                    continue
                if reaches(value, private) or is_alias(value):
                    self.refused.append((i, name))
                else:
                    self._set.append((i, name, value))

    def hand_on(self, parameters: Sequence[nn.Parameter], internals: Internals, ending: Ending) -> None:
        """Sets the attributes at the parameters, without the histories of tensors.

        Args:
            parameters: The parameters, in the order of the leaves.
            internals: Notes where tensors are stored.
            ending: Ends the histories of tensors.
        """
        for i, name in self._removed:
            parameters[i].__dict__.pop(name, None)
        for i, name, value in self._set:
            (part,) = attribute_parts([parameters[i]])
            kept = part.original[name] = internals.without_history(value, ending)
            internals.note_set(part, name, kept)
