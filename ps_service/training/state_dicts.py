"""Reads and loads the state of hosted modules, optimizers and schedulers."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ps_service.passes.call_frame import CallFrame
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.schedulers import HostedScheduler
from ps_wire.codec.trees import once, tied
from ps_wire.errors import InvalidArgumentError

_OF_OPTIMIZERS: Final = frozenset(("state", "param_groups"))
"""What torch calls the parts of the state of every optimizer."""

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ps_service.hosting.host import Host
    from ps_service.hosting.objects import HostedObject
    from ps_wire.refs import Ref


def state_of(engine: Host, target: HostedObject) -> Any:
    """Like `state_dict`, for an object that need not have a handle. Raises `InvalidArgumentError` if it has none."""
    if isinstance(target.value, nn.Module):
        # All parameters are read between the same two steps.
        with CallFrame(engine.parameter_locks, target.value.training, recorded=False, grad=False) as call_frame:
            module = call_frame.bind(target)
            with target.internals.quiet():
                state = _copied(module)
            del module
            return state
    if isinstance(target.value, (HostedOptimizer, HostedScheduler)):
        return target.value.state_dict()
    raise InvalidArgumentError(f"{target} has no state_dict")


def load_state_dict(engine: Host, ref: Ref, state: Any, strict: bool) -> tuple[list[str], list[str]]:
    """Loads a state, entirely or not at all. Returns the missing and the unexpected keys of a module (both empty when
    strict). Raises `InvalidArgumentError` if the state does not fit; nothing was changed."""
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
    engine: Host, target: HostedObject, module: nn.Module, state: dict[str, Any], strict: bool
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
        if state.keys() >= _OF_OPTIMIZERS and not state.keys() & known.keys():
            raise InvalidArgumentError(
                f"this looks like the state of an optimizer, and {target} is a module: load it with the optimizer's "
                f"own load_state_dict; missing {missing}"
            )
        raise InvalidArgumentError(f"the state does not fit {target}: missing {missing}, unexpected {unexpected}")
    with (
        engine.parameter_locks.stepping(target.parameter_states),
        engine.parameter_locks.writing(list(target.parameters.values()), target.parameter_states, consistent=True),
    ):
        if target.internals.buffers():
            target.views.await_views()  # calls may read them; of parameters they keep the values from before
        with target.internals.quiet():
            before = None if _only_copies(module, known, state) else _copied(module)
            try:
                module.load_state_dict(state, strict=False)
            except Exception as error:  # a module's set_extra_state may raise anything
                if before is not None:
                    with suppress(RuntimeError):  # of what cannot be copied, and was not changed either
                        module.load_state_dict(before)
                raise InvalidArgumentError(f"the state does not fit {target}: {error}") from None
            finally:
                for each in target.parameter_states:
                    each.rewritten()
    return missing, unexpected


def _only_copies(module: nn.Module, known: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether loading a state that fits only copies tensors, which cannot fail half way: torch's own code does it."""
    for name, value in state.items():
        own = known.get(name)
        if isinstance(own, torch.Tensor) and not _is_copied(value, own):
            return False
    return not any(map(_has_own_loading, module.modules()))


def _is_copied(value: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether torch can copy a value of the same shape, without an error: such as that elements share memory."""
    same = (own.dtype, own.layout) == (value.dtype, value.layout) and own.layout is torch.strided
    return same and torch._debug_has_internal_overlap(own) == 0


def _has_own_loading(part: nn.Module) -> bool:
    cls = type(part)
    if part._load_state_dict_pre_hooks or part._load_state_dict_post_hooks:
        return True
    return not cls.__module__.startswith("torch.nn.") and (
        cls._load_from_state_dict is not nn.Module._load_from_state_dict
        or cls.load_state_dict is not nn.Module.load_state_dict
        or cls.set_extra_state is not nn.Module.set_extra_state
    )


def _copied(module: nn.Module) -> dict[str, Any]:
    """The state of a module with copies of its tensors; parameters that are tied have one."""
    copy = once(lambda tensor: tensor.detach().clone())
    return {
        name: copy(value) if isinstance(value, torch.Tensor) else value
        for name, value in tied(module.state_dict()).items()
    }
