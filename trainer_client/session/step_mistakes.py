"""What steps and backwards say of what they were given: no context, no optimizer, or a context with a step before."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import ContextId
from ps_wire.runtime.failures import caller_level
from ps_wire.shown import shown

if TYPE_CHECKING:
    from trainer_client.pending import Pending

_AGAIN: Final = (
    "a second step of the same optimizer in one context: gradients add up in a context and are not zeroed after a "
    "step, so this step applies those of the step before once more. Use one context per step: open `ps.context()` "
    "inside of the loop, around one forward, backward and step"
)


class SteppedPass(Protocol):
    """A pass as far as it knows who has stepped with it: the steps of optimizers that were begun or have succeeded
    (None), and whether the program was told that it has made two of the same one."""

    steps: dict[Any, Pending[Any] | None]
    is_told: bool


def without_context(waits: bool = False) -> InvalidArgumentError:
    """The error of a step that was given no context, in the words of the client whose methods wait, or do not."""
    shown = "with ps.context() as ctx: … opt.step(ctx)"
    if not waits:
        shown = "async with ps.context() as ctx: … await opt.step(ctx)"
    return InvalidArgumentError(f"step() takes the context of the pass: `{shown}`")


def check_scaler(scaler: object, method: str = "step()") -> None:
    """Raises `InvalidArgumentError` if what a step or a push was given for a scaler is neither that nor None."""
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise InvalidArgumentError(f"{method} takes a torch.amp.GradScaler as the scaler, not {shown(scaler)}")


def check_unscale(context: object, scaler: object) -> None:
    """The same for what is unscaled: the gradients of a context, by a scaler."""
    if not isinstance(getattr(context, "id", None), ContextId) or not isinstance(scaler, torch.amp.GradScaler):
        raise InvalidArgumentError(
            "unscale() takes the context of the pass and the torch.amp.GradScaler of the loss: opt.unscale(ctx, scaler)"
        )


def without_step() -> InvalidArgumentError:
    """The error of a backward that was given values and no optimizer to report them to."""
    return InvalidArgumentError(
        "values are reported to an optimizer, when it steps: give backward() the optimizer, too, as in "
        "`step=opt, values={…}`; or report them with `opt.step(ctx, values={…})`"
    )


def warn_of_another(context: SteppedPass, optimizer: object) -> None:
    """Warns, once in a pass, that an optimizer steps in it again, unless its step before has failed or was skipped."""
    before = context.steps[optimizer]
    if context.is_told or (before is not None and not _has_stepped(before)):
        return
    context.is_told = True
    warnings.warn(_AGAIN, UserWarning, stacklevel=caller_level())


def _has_stepped(step: Pending[Any]) -> bool:
    """Whether a step has changed something, or may do so. Its error is not read, so that the program hears of it."""
    if not step.settled:
        return True
    if step.error is not None:
        return False
    try:
        return step.result() is not None
    except Exception:
        return False
