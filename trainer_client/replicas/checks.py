"""What is checked before a push or a local step of replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch

    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.replicas.pass_pushes import Pushable
    from trainer_client.replicas.replica import Replica


def check_pass(opt: Pushable, context: Context | None, replicas: Sequence[Replica]) -> DistributedOptimizer:
    """Checks that a push of replicas may join a pass of the program, or needs none; returns the parameters' optimizer.

    Raises:
        InvalidArgumentError: An optimizer with tables needs one, and so do gradients that an open pass has; or a
            backward of the pass has not ended. Or there are only tables.
    """
    if not hasattr(opt, "of_parameters"):
        raise InvalidArgumentError(
            f"a push needs an optimizer on the owner, as Client.optimizer() returns, not a {type(opt).__name__}; to "
            "step the replica itself with an optimizer of this process, see Client.local_steps()"
        )
    own = opt.of_parameters
    if own is None:
        raise InvalidArgumentError(f"{opt!r} steps tables only, and no replica")
    if context is None:
        if own is not opt:
            raise InvalidArgumentError(
                "an optimizer with tables steps with the gradients of a pass: call ctx.backward(loss), and then "
                "push(opt, context=ctx)"
            )
        check_gradients([each for replica in replicas for each in replica.pulled_parameters], replicas[0].current())
        return own
    _check_backward(context)
    return own


def take_gradients(context: Context, parameters: Sequence[torch.Tensor], closure: object) -> None:
    """Makes the gradients of a pass `.grad` of parameters, for a step with an optimizer of torch.

    Raises:
        InvalidArgumentError: A backward of the pass has not ended, or there is a closure, which makes gradients itself.
        ContextEndedError, ContextLostError: The pass has ended.
    """
    if closure is not None:
        raise InvalidArgumentError("a closure computes gradients by itself; a step takes it, or a context")
    context.check()
    _check_backward(context)
    for parameter in parameters:
        parameter.grad = context.gradient(parameter)
    context.local.drop(parameters)


def _check_backward(context: Context) -> None:
    if context.unfinished:
        raise InvalidArgumentError("the backward of this context has not ended: await ctx.backward(loss) first")


def check_gradients(parameters: Sequence[torch.Tensor], current: Context | None) -> None:
    """Raises `InvalidArgumentError` if a push or a step would do nothing, because the open pass has all gradients."""
    if current is None or any(each.grad is not None for each in parameters):
        return
    if any(current.gradient(each) is not None for each in parameters):
        raise InvalidArgumentError(
            "no parameter of the replica has a .grad, and this would do nothing: after ctx.backward(loss) the "
            "gradients belong to the pass. Give it with context=ctx, or call loss.backward() if only the replica is "
            "used"
        )
