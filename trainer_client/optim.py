"""Distributed optimizers, with the names of `torch.distributed.optim`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ps_wire.errors import InvalidArgumentError
from trainer_client.handles.references import RRef as Handle
from trainer_client.optimizers import creation, optimizer
from trainer_client.pending import Pending
from trainer_client.rpc.contexts import context_of
from trainer_client.rpc.current import agent
from trainer_client.rpc.rref import RRef


class DistributedOptimizer:
    """One optimizer over the parameters of any number of processes. Each process steps its own parameters.

    Args:
        optimizer_class: A class of `torch.optim`, or one that is marked `@hosted` on the owners of the parameters.
        params_rref: References to parameters, from `RemoteModule.remote_parameters` or `RRef(parameter)`, and tensors
            of this process, in any order; or groups of them as in torch.
        args: Arguments of the class after the parameters.
        kwargs: Keyword arguments of the class.

    Raises:
        InvalidArgumentError: The class refuses the arguments, or a parameter is neither a reference nor a tensor.
        TypeError: The parameters are in no list.
    """

    def __init__(
        self, optimizer_class: type[torch.optim.Optimizer], params_rref: Iterable[Any], *args: Any, **kwargs: Any
    ) -> None:
        if isinstance(params_rref, torch.Tensor) or not isinstance(params_rref, Iterable):
            raise TypeError(
                "params_rref must be a list of references to parameters and tensors, or of groups of them, "
                f"not a {type(params_rref).__name__}"
            )
        options = {**_named(optimizer_class, args), **kwargs}
        parameters = [_group(each) if isinstance(each, Mapping) else _parameter(each) for each in params_rref]
        creating = creation.create(optimizer_class, parameters, options, "", "consistent", "apply")
        self._made = Pending.run(agent().loop, creating).wait()

    def step(self, context_id: int, scaler: torch.amp.GradScaler | None = None) -> None:
        """Applies the gradients of a context. Each process applies all of its gradients or none.

        Args:
            context_id: The id of the context.
            scaler: The scaler of the loss. Gradients are unscaled first, unless `unscale_` has done that. If one of
                them is not finite, the step is skipped in all processes.

        Raises:
            RuntimeError: No such context is open here, or the scaler raised.
            PsError: A process failed; others may have applied their part.
        """
        self._made.apply(context_of(context_id), scaler)

    def unscale_(self, context_id: int, scaler: torch.amp.GradScaler) -> None:
        """Divides the gradients of a context by the scaler's scale in all processes, so that they can be clipped.

        Raises:
            RuntimeError: No such context is open here, or the scaler has unscaled since its last update.
        """
        self._made.unscale(context_of(context_id), scaler).wait()

    @property
    def unwrapped(self) -> optimizer.DistributedOptimizer:
        """The client's optimizer, which also has options, a state and schedulers."""
        return self._made


def clip_grad_norm_(
    context_id: int, params_rref: RRef | torch.Tensor | Iterable[Any], max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Scales the gradients of a context so that their norm over all processes is at most `max_norm`.

    Args:
        context_id: The id of the context.
        params_rref: References to parameters and tensors of this process, as for a `DistributedOptimizer`, or one.
        max_norm: The largest norm.
        norm_type: The exponent of the norm; infinity for the largest absolute value.

    Returns:
        The norm before, a scalar float32 tensor.

    Raises:
        RuntimeError: No such context is open here.
        InvalidArgumentError: `max_norm` or `norm_type` is not positive.
    """
    parameters: Any = _parameters(params_rref)
    return context_of(context_id).clip_grad_norm(parameters, max_norm, norm_type).wait()


def _group(group: Mapping[str, Any]) -> dict[str, Any]:
    return {**group, "params": _parameters(group["params"])}


def _parameters(parameters: Any) -> list[torch.Tensor | Handle]:
    """What an optimizer takes for several, or for one that is in no list."""
    is_one = isinstance(parameters, (RRef, Handle, torch.Tensor)) or not isinstance(parameters, Iterable)
    several = [parameters] if is_one else parameters
    return [_parameter(each) for each in several]


def _parameter(parameter: Any) -> torch.Tensor | Handle:
    if isinstance(parameter, RRef):
        hosted = parameter.hosted
        parameter = hosted.local_value() if hosted is not None and hosted.hosted is None else parameter.handle()
    if not isinstance(parameter, (torch.Tensor, Handle)):
        raise InvalidArgumentError(
            f"an optimizer takes references to parameters and tensors, not a {type(parameter).__name__}"
        )
    return parameter


def _named(cls: type, args: tuple[Any, ...]) -> dict[str, Any]:
    """Positional arguments by their names: an owner takes options only by name."""
    names = list(inspect.signature(cls).parameters)[1:]
    if len(args) > len(names):
        raise InvalidArgumentError(f"{cls.__name__} takes {len(names)} arguments after its parameters, not {len(args)}")
    return dict(zip(names, args, strict=False))
