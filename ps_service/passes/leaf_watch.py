"""Notices changes that a run makes to the leaves of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_service.hosting.histories import Ending
from ps_service.hosting.hooks import HookWatch
from ps_service.hosting.parameter_attributes import AttributeWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    import torch
    from torch import nn

    from ps_service.hosting.internals import Internals


class LeafWatch:
    """Watches the leaves of one run; made before the run begins.

    Most runs only compute with them. Then it costs one check per leaf.

    Args:
        leaves: The leaves, in the order of the parameters.

    Attributes:
        touched: Indices of the leaves that the run has changed in any way.
        hooked: Indices of the leaves at which the run has registered hooks.
    """

    __slots__ = ("_attributes", "_before", "_hooks", "_leaves", "hooked", "touched")

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        self._leaves = leaves
        self._before: list[tuple[int, bool]] = []
        self._hooks: HookWatch | None = None
        self._attributes: AttributeWatch | None = None
        self.touched: list[int] = []
        self.hooked: list[int] = []
        marked = False
        for leaf in leaves:
            self._before.append((leaf.data_ptr(), leaf.requires_grad))
            marked = marked or bool(leaf.__dict__ or leaf._backward_hooks)
        if marked:
            self._hooks, self._attributes = HookWatch(leaves), AttributeWatch(leaves)

    def note(self, module: nn.Module, is_alias: Callable[[Any], bool]) -> None:
        """Notes the changes at the end of the run, and removes the hooks that it has registered.

        Args:
            module: The copy that it ran on.
            is_alias: Tells whether a value shares the memory of a parameter.
        """
        marked = self._hooks is not None
        for i, (leaf, (pointer, flag)) in enumerate(zip(self._leaves, self._before, strict=True)):
            if leaf.__dict__ or leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
                marked = True
            elif not leaf._version and leaf.requires_grad is flag and leaf.data_ptr() == pointer and leaf.grad is None:
                continue
            self.touched.append(i)
        if marked:
            self._attributes = self._attributes or AttributeWatch(self._leaves, had_none=True)
            self._attributes.note(module, is_alias)
            self.hooked = (self._hooks or HookWatch(self._leaves, had_none=True)).remove_new()

    def is_moved(self, i: int) -> bool:
        """Whether a leaf has other memory than at the beginning."""
        return self._leaves[i].data_ptr() != self._before[i][0]

    def pointer(self, i: int) -> int:
        """The address of a leaf at the beginning."""
        return self._before[i][0]

    def has_set_requires_grad(self, i: int) -> bool:
        """Whether the run has set requires_grad of a leaf."""
        return self._leaves[i].requires_grad != self._before[i][1]

    def hand_on_attributes(
        self, parameters: Sequence[nn.Parameter], internals: Internals, known: Container[int]
    ) -> None:
        """Sets the attributes that were set at leaves at the parameters; see `AttributeWatch.hand_on`."""
        if self._attributes is not None:
            self._attributes.hand_on(parameters, internals, Ending(known))

    @property
    def refused(self) -> list[tuple[int, str]]:
        """Indices of leaves and names of attributes that are refused; see `AttributeWatch`."""
        return [] if self._attributes is None else self._attributes.refused
