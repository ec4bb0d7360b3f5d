"""What is checked before a push or a local step of replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch

    from trainer_client.replicas.protocols import OpenPass, OwnersOptimizer, Pushable


class CheckedReplica(Protocol):
    """A replica whose gradients are to be pushed; see `Replica`."""

    @property
    def pulled_parameters(self) -> Sequence[torch.Tensor]:
        """The parameters, in the order of the owner's module."""

    @property
    def current(self) -> Callable[[], OpenPass | None]:
        """Returns the pass of this task or thread."""


def check_pass(opt: Pushable, context: OpenPass | None, replicas: Sequence[CheckedReplica]) -> OwnersOptimizer:
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


def take_gradients(context: OpenPass, parameters: Sequence[torch.Tensor], closure: object) -> None:
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
    context.drop(parameters)


def has_counted() -> InvalidArgumentError:
    """The error for a push of local steps that the owner leaves out: one before it, whose outcome was open, counts."""
    return InvalidArgumentError(
        "the last push has failed here, and its difference has counted, so that this one, which has it too, does not: "
        "call pull() of the replica first, which takes over what the owner has"
    )


def _check_backward(context: OpenPass) -> None:
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
