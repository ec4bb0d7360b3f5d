"""The errors for calls that have changed their module in a way that is refused; they say what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ps_service.hosting.aliases import WHY, is_within
from ps_wire.errors import ContextLostError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ps_service.hosting.internals import Internals
    from ps_service.hosting.objects import HostedObject
    from ps_service.parameters.locks import ParameterLocks


class Bound(Protocol):
    """A module while a call runs on it."""

    code: str
    hosted: HostedObject
    internals: Internals
    parameter_locks: ParameterLocks

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """Its parameters."""

    def hold(self) -> None:
        """Keeps the values of the parameters for as long as the graph of the call."""

    def finds_parameters(self) -> None:
        """Notes that the call has computed with parameters themselves, and not with the leaves of its view."""

    def name(self, i: int) -> str:
        """The dotted name of a parameter."""


def restructured(bound: Bound) -> InvalidArgumentError:
    """The error for a call that has changed the structure of its module."""
    return InvalidArgumentError(
        f"{bound.code} has added, replaced or deleted a parameter or submodule of {bound.hosted}; the "
        "structure of a hosted module is fixed once it is made. Write to parameters with copy_() or .data instead"
    )


def aliased(bound: Bound, name: str) -> InvalidArgumentError:
    """The error for a call that has kept memory of a parameter in an attribute; without a name, in a container."""
    where = f"set attribute {name!r} of" if name else "put into a container beside a parameter or layer of"
    to = "to " if name else ""
    return InvalidArgumentError(
        f"{bound.code} has {where} {bound.hosted} {to}a tensor in the memory of a parameter, but {WHY}. Keep a "
        "copy of it, with clone()"
    )


def hooked(bound: Bound, i: int) -> InvalidArgumentError:
    """The error for a call that has left a hook at a parameter which would never run, or only for some calls."""
    return InvalidArgumentError(
        f"{bound.code} has registered a hook at parameter {bound.name(i)!r} of {bound.hosted} that could not run as it "
        "does locally: nothing is ever accumulated in the .grad of hosted parameters, and other calls have tensors of "
        "their own in the parameter's place. Register it with register_hook in the constructor"
    )


def accumulated(bound: Bound, i: int) -> InvalidArgumentError:
    """The error for a call that has accumulated gradients at a parameter."""
    return InvalidArgumentError(
        f"{bound.code} has called backward() on what it computed from parameter {bound.name(i)!r} of "
        f"{bound.hosted}. Gradients of hosted parameters belong to the pass of a trainer; inside hosted "
        "code use torch.autograd.grad"
    )


def overtaken(bound: Bound, i: int) -> ContextLostError:
    """The error for a call whose write to a parameter a step may have undone; later calls of the kind take turns."""
    return ContextLostError(
        f"{bound.code} has written to parameter {bound.name(i)!r} of {bound.hosted} while a step changed it, so that "
        "what it has written may be lost: run it again"
    )


def misplaced(
    bound: Bound, i: int, moved: torch.Tensor, before: torch.Tensor, others: Sequence[torch.Tensor]
) -> InvalidArgumentError | None:
    """The error for a call that has given a parameter another shape, another dtype, or the memory of something else.

    `moved` is the parameter or its leaf with its new memory, and `others` are the other ones of the module.
    """
    if moved.shape != before.shape or moved.dtype != before.dtype:
        return InvalidArgumentError(
            f"{bound.code} has given parameter {bound.name(i)!r} of {bound.hosted} another shape or dtype; "
            "those of a hosted module are fixed, and nothing was changed"
        )
    if is_within(moved, others):
        owner = "another parameter"
    elif is_within(moved, bound.internals.found().tensors):
        owner = "a tensor that the module keeps"
    else:
        return None
    return InvalidArgumentError(
        f"{bound.code} has given parameter {bound.name(i)!r} of {bound.hosted} the memory of {owner}. Hosted "
        "parameters have memory of their own, and nothing was changed. Give it a copy, with clone()"
    )
