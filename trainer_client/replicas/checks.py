"""What is checked before a push or a local step of replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch

    from trainer_client.replicas.protocols import OpenPass, OwnersOptimizer, Pushable


def take_gradients(context: OpenPass, parameters: Sequence[torch.Tensor], closure: object) -> None:
    """Makes the gradients of a pass `.grad` of parameters, for an optimizer of torch; raises as `LocalSteps.step`."""
    if closure is not None:
        raise InvalidArgumentError("a closure computes gradients by itself; a step takes it, or a context")
    context.check()
    check_backward(context)
    for parameter in parameters:
        parameter.grad = context.gradient(parameter)
    context.drop(parameters)


def has_counted() -> InvalidArgumentError:
    """The error for a push of local steps that the owner leaves out: one before it, whose outcome was open, counts."""
    return InvalidArgumentError(
        "the last push has failed here, and its difference has counted, so that this one, which has it too, does not: "
        "call pull() of the replica first, which takes over what the owner has"
    )


def check_backward(context: OpenPass) -> None:
    """Raises `InvalidArgumentError` if a backward of the pass has not ended."""
    if context.unfinished:
        raise InvalidArgumentError("the backward of this context has not ended: await ctx.backward(loss) first")


def check_gradients(parameters: Sequence[torch.Tensor], current: OpenPass | None) -> None:
    """Raises `InvalidArgumentError` if a push or a step would do nothing, because the open pass has all gradients."""
    if current is None or any(each.grad is not None for each in parameters):
        return
    if any(current.gradient(each) is not None for each in parameters):
        raise InvalidArgumentError(
            "no parameter of the replica has a .grad, and this would do nothing: after ctx.backward(loss) the "
            "gradients belong to the pass. Give it with context=ctx, or call loss.backward() if only the replica is "
            "used"
        )


def of_parameters(opt: Pushable) -> OwnersOptimizer | None:
    """The part of an optimizer on owners that steps parameters and no tables, if it has one."""
    if not hasattr(opt, "of_parameters"):
        raise InvalidArgumentError(
            f"a push needs an optimizer on the owner, as Client.optimizer() returns, not a {type(opt).__name__}; "
            "to step the replica itself with an optimizer of this process, see Client.local_steps()"
        )
    return opt.of_parameters
