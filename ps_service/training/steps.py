"""Operations on optimizers and schedulers, and on the state of modules and optimizers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ps_service.hosting.objects import HostedObject
from ps_service.passes.call_frame import CallFrame
from ps_service.passes.gradients import Unscaled
from ps_service.training.optimizers import Covered, HostedOptimizer, NonFinite, Reads
from ps_service.training.schedulers import HostedScheduler
from ps_wire.errors import InvalidArgumentError, PsError

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_wire.refs import ContextId, Ref


def create_optimizer(
    engine: Engine,
    class_name: str,
    groups: Sequence[tuple[Sequence[Ref], Mapping[str, Any]]],
    options: Mapping[str, Any],
    name: str = "",
    reads: Reads = Reads.CONSISTENT,
    non_finite: NonFinite = NonFinite.APPLY,
    fingerprint: bytes = b"",
    object_id: str = "",
) -> tuple[HostedObject, bool]:
    """Creates an optimizer, or returns the existing one of that name.

    Without a name, an optimizer of named objects gets a name made from them and the covered parameters, so that
    trainers that ask for the same optimizer share it.

    Raises:
        NotAllowedError: The class is not on the allow-list.
        NameConflictError: The name is taken by something else.
        InvalidArgumentError: There is nothing to optimize, or the class refuses the arguments.
    """
    cls = engine.allowlist.optimizer(class_name)
    hosts: dict[str, HostedObject] = {}
    members = []
    for refs, own in groups:
        members.append(([_covered(engine, ref, hosts) for ref in refs], own))
    if not hosts:
        raise InvalidArgumentError("an optimizer needs at least one parameter; a handle of a module has parameters()")
    name = name or _shared_name(hosts.values(), members)

    def make() -> HostedObject:
        try:
            value = HostedOptimizer(cls, members, options, reads, non_finite, engine.parameter_locks)
        except PsError:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{class_name} refuses its arguments: {error}") from None
        value.counter = engine.counters.steps.of(name)
        made = HostedObject(engine.name, value, engine.parameter_locks, name, fingerprint, object_id)
        made.class_name = class_name
        engine.registry.bind(made, hosts.values())
        return made

    return engine.registry.get_or_make(name, fingerprint, make)


def create_scheduler(
    engine: Engine,
    class_name: str,
    optimizer: Ref,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    name: str = "",
    fingerprint: bytes = b"",
    object_id: str = "",
) -> tuple[HostedObject, bool]:
    """Creates a learning-rate scheduler for an optimizer, or returns the existing one of that name.

    Raises:
        NotAllowedError: The class is not on the allow-list.
        NameConflictError: The name is taken by something else.
        InvalidArgumentError: The class refuses the arguments.
    """
    cls = engine.allowlist.scheduler(class_name)
    hosted = engine.registry.find(optimizer)
    value = _optimizer(hosted)
    if not name and hosted.name:
        name = f"{hosted.name}.{cls.__name__}"

    def make() -> HostedObject:
        try:
            scheduler = HostedScheduler(cls, value, args, kwargs)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{class_name} refuses its arguments: {error}") from None
        made = HostedObject(engine.name, scheduler, engine.parameter_locks, name, fingerprint, object_id)
        made.class_name = class_name
        engine.registry.bind(made, [hosted])
        return made

    return engine.registry.get_or_make(name, fingerprint, make)


def step(engine: Engine, optimizer: HostedObject, context_id: ContextId) -> int:
    """Applies a context's gradients; returns the optimizer's version.

    Raises:
        ContextEndedError: The context has ended.
        NonFiniteGradientError: A gradient holds NaN or infinity; nothing was changed.
        InvalidArgumentError: The optimizer cannot take a gradient's layout; nothing was changed.
    """
    value = _optimizer(optimizer)
    context = engine.contexts.get(context_id)
    return value.version if context is None else value.step(context)


def check_step(engine: Engine, optimizer: HostedObject, context_id: ContextId) -> int:
    """Checks a step without applying it; returns the optimizer's version, or raises what `step` would raise."""
    value = _optimizer(optimizer)
    context = engine.contexts.get(context_id)
    if context is not None:
        value.check(context)
    return value.version


def unscale(engine: Engine, optimizer: Ref, context_id: ContextId, factor: float) -> Unscaled:
    """Multiplies the gradients that an optimizer would apply by the inverse of a loss's scale.

    Raises:
        ContextEndedError: The context has ended.
        InvalidArgumentError: A gradient is float16, which cannot be unscaled without loss; nothing was changed.
    """
    value = _optimizer(engine.registry.find(optimizer))
    context = engine.contexts.get(context_id)
    if context is None:
        return Unscaled(present=False, non_finite=False)
    return context.unscale([each.parameter for each in value.covered], factor)


def set_options(engine: Engine, optimizer: Ref, group: int | None, options: Mapping[str, Any]) -> None:
    """Changes options of an optimizer's parameter groups.

    Raises:
        InvalidArgumentError: There is no such group or option.
    """
    _optimizer(engine.registry.find(optimizer)).set_options(group, options)


def state_dict(engine: Engine, ref: Ref) -> Any:
    """The state of a module, optimizer or scheduler, as a copy with torch's own keys.

    Raises:
        InvalidArgumentError: The object has no state.
    """
    return state_of(engine, engine.registry.find(ref))


def state_of(engine: Engine, target: HostedObject) -> Any:
    """Like `state_dict`, for an object that need not have a handle.

    Raises:
        InvalidArgumentError: The object has no state.
    """
    if isinstance(target.value, nn.Module):
        # From a private copy, whose parameters were all read between the same two steps.
        assert target.bound_copies is not None
        with CallFrame(engine.parameter_locks, target.value.training, recorded=False, grad=False) as call_frame:
            module = call_frame.bind(target)
            with target.bound_copies.internals.quiet():
                state = {name: _copy(value) for name, value in module.state_dict().items()}
            del module
            return state
    if isinstance(target.value, (HostedOptimizer, HostedScheduler)):
        return target.value.state_dict()
    raise InvalidArgumentError(f"{target} has no state_dict")


def load_state_dict(engine: Engine, ref: Ref, state: Any, strict: bool) -> tuple[list[str], list[str]]:
    """Loads a state, entirely or not at all.

    Returns:
        For modules, the missing and the unexpected keys (both empty when strict).

    Raises:
        InvalidArgumentError: The state does not fit; nothing was changed.
    """
    target = engine.registry.find(ref)
    if not isinstance(state, dict):
        raise InvalidArgumentError(f"a state is a dict, not a {type(state).__name__}")
    if isinstance(target.value, nn.Module):
        return _load_module(engine, target, target.value, state, strict)
    if isinstance(target.value, (HostedOptimizer, HostedScheduler)):
        target.value.load_state_dict(state)
        return [], []
    raise InvalidArgumentError(f"{target} has no state to load")


def _load_module(
    engine: Engine, target: HostedObject, module: nn.Module, state: dict[str, Any], strict: bool
) -> tuple[list[str], list[str]]:
    known = module.state_dict()
    for name, value in state.items():
        own = known.get(name)
        if isinstance(own, torch.Tensor) and (not isinstance(value, torch.Tensor) or value.shape != own.shape):
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise InvalidArgumentError(f"{name!r} of {target} has shape {tuple(own.shape)}, the state brings {shape}")
        if isinstance(own, torch.Tensor) and not torch.can_cast(value.dtype, own.dtype):
            raise InvalidArgumentError(f"{name!r} of {target} is {own.dtype}, the state brings {value.dtype}")
    missing, unexpected = sorted(known.keys() - state.keys()), sorted(state.keys() - known.keys())
    if strict and (missing or unexpected):
        raise InvalidArgumentError(f"the state does not fit {target}: missing {missing}, unexpected {unexpected}")
    assert target.bound_copies is not None
    with (
        engine.parameter_locks.stepping(target.parameter_states),
        engine.parameter_locks.writing(list(target.parameters.values()), target.parameter_states, consistent=True),
        target.bound_copies.internals.quiet(),
    ):
        before = {name: _copy(value) for name, value in module.state_dict().items()}
        try:
            module.load_state_dict(state, strict=False)
        except Exception as error:  # a module's set_extra_state may raise anything
            module.load_state_dict(before)
            raise InvalidArgumentError(f"the state does not fit {target}: {error}") from None
    return missing, unexpected


def _covered(engine: Engine, ref: Ref, hosts: dict[str, HostedObject]) -> Covered:
    host = engine.registry.find(ref)
    hosts[ref.object_id] = host
    return Covered(ref, host.parameter(ref.parameter), host.parameter_state(ref.parameter))


def _shared_name(hosts: Any, members: Sequence[tuple[Sequence[Covered], Any]]) -> str:
    names = [host.name for host in hosts]
    if not all(names):
        return ""
    joined = "+".join(sorted(names))
    covered = [each.ref for refs, _ in members for each in refs]
    if len(covered) == sum(len(host.parameters) for host in hosts):
        return f"{joined}.optimizer"
    digest = hashlib.blake2b("\n".join(f"{ref.object_id}{ref.parameter}" for ref in covered).encode(), digest_size=4)
    return f"{joined}.optimizer-{digest.hexdigest()}"


def _optimizer(hosted: HostedObject) -> HostedOptimizer:
    if not isinstance(hosted.value, HostedOptimizer):
        raise InvalidArgumentError(f"{hosted} is not an optimizer")
    return hosted.value


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
