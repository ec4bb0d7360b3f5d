"""What both kinds of bindings of a module to a call have in common, and the errors for what a call must not do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_service.hosting.aliases import WHY, is_within
from ps_service.hosting.structure import tensors_below
from ps_wire.errors import ContextLostError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    import torch

    from ps_service.hosting.leaves import Leaf
    from ps_service.hosting.objects import HostedObject
    from ps_service.hosting.views import Call
    from ps_service.parameters.locks import ParameterLocks
    from ps_service.passes.pass_values import PassValues
    from ps_wire.errors import PsError


class Binding:
    """A module while a call of some kind runs on it: on a view, or on the module itself.

    `code` is the name of the method or function that runs, and `has_set` tells whether that has set an attribute of a
    module. If it `is_held`, code of the module may run in the backward; on the module itself, that finds the `values`.
    It `uses_others` if the graph of the call may reach leaves that are not those of the module, as far as is known.
    `leaves` has for each parameter what a record keeps of it, and `steps` the number of its steps when the call began.
    The errors say what to do instead.
    """

    has_set = False
    is_held = False
    values: PassValues | None = None
    leaves: Sequence[Leaf]
    steps: Sequence[int]

    def __init__(self, parameter_locks: ParameterLocks, hosted: HostedObject, kind: Call) -> None:
        self.parameter_locks = parameter_locks
        self.hosted = hosted
        self.kind = kind
        self.code = kind[0]
        self.internals = hosted.internals
        self.views = hosted.views
        self.parameters = hosted.views.parameters
        self.uses_others = hosted.uses_others
        self._failed: PsError | None = None

    def hold(self) -> None:
        """Notes that code of the module may run in the backward, where it finds the values of this call."""
        self.is_held = True

    def finds_parameters(self) -> None:
        """Notes that the graph of the call reaches parameters themselves, beside leaves of a view."""

    def private_ids(self) -> set[int]:
        """`id()` of the modules and leaves that belong to calls."""
        return set()

    def name(self, i: int) -> str:
        """The dotted name of a parameter."""
        return self.hosted.parameter_refs[i].parameter

    def parameter_behind(self, leaf: torch.Tensor) -> str | None:
        """The dotted name of the parameter that is, or that has, a leaf of this call."""
        return next((self.name(i) for i, each in enumerate(self.leaves) if each.tensor is leaf), None)

    def settle(self, raised: bool) -> None:
        """Raises the error for what the code has done and may not do, or others have done meanwhile. The module has
        been given back."""
        if self._failed is not None and not raised:
            raise self._failed

    def _is_alias(self, value: Any, own: Container[int]) -> bool:
        """Whether a value has a tensor in the memory of a parameter, besides those with these `id()`."""
        tensors: list[torch.Tensor] = []
        tensors_below(value, tensors)
        return any(is_within(each, self.parameters) for each in tensors if id(each) not in own)

    def restructured(self) -> InvalidArgumentError:
        """The error for a call that has changed the structure of its module."""
        return InvalidArgumentError(
            f"{self.code} has added, replaced or deleted a parameter or submodule of {self.hosted}; the "
            "structure of a hosted module is fixed once it is made. Write to parameters with copy_() or .data instead"
        )

    def aliased(self, name: str) -> InvalidArgumentError:
        """The error for a call that has kept memory of a parameter in an attribute."""
        return InvalidArgumentError(
            f"{self.code} has set attribute {name!r} of {self.hosted} to a tensor in the memory of a parameter, but "
            f"{WHY}. Keep a copy of it, with clone()"
        )

    def hooked(self, i: int) -> InvalidArgumentError:
        """The error for a call that has left a hook at a parameter which would never run, or only for some calls."""
        return InvalidArgumentError(
            f"{self.code} has registered a hook at parameter {self.name(i)!r} of {self.hosted} that could not run as "
            "it does locally: nothing is ever accumulated in the .grad of hosted parameters, and other calls have "
            "tensors of their own in the parameter's place. Register it with register_hook in the constructor"
        )

    def accumulated(self, i: int) -> InvalidArgumentError:
        """The error for a call that has accumulated gradients at a parameter."""
        return InvalidArgumentError(
            f"{self.code} has called backward() on what it computed from parameter {self.name(i)!r} of "
            f"{self.hosted}. Gradients of hosted parameters belong to the pass of a trainer; inside hosted "
            "code use torch.autograd.grad"
        )

    def overtaken(self, i: int) -> ContextLostError:
        """The error for a call whose write to a parameter a step may have undone. Later calls take turns."""
        return ContextLostError(
            f"{self.code} has written to parameter {self.name(i)!r} of {self.hosted} while a step changed it, so that "
            "what it has written may be lost: run it again"
        )

    def misplaced(
        self, i: int, moved: torch.Tensor, before: torch.Tensor, others: Sequence[torch.Tensor]
    ) -> InvalidArgumentError | None:
        """The error for a call that has given a parameter another shape or dtype, or the memory of something else.
        `moved` is the parameter or its leaf with its new memory, and `others` are the other ones of the module."""
        if moved.shape != before.shape or moved.dtype != before.dtype:
            return InvalidArgumentError(
                f"{self.code} has given parameter {self.name(i)!r} of {self.hosted} another shape or dtype; "
                "those of a hosted module are fixed, and nothing was changed"
            )
        if is_within(moved, others):
            owner = "another parameter"
        elif is_within(moved, self.internals.found().tensors):
            owner = "a tensor that the module keeps"
        else:
            return None
        return InvalidArgumentError(
            f"{self.code} has given parameter {self.name(i)!r} of {self.hosted} the memory of {owner}. Hosted "
            "parameters have memory of their own, and nothing was changed. Give it a copy, with clone()"
        )
