"""Applies the values that a call has written to leaves to the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ps_service.hosting.aliases import is_within
from ps_service.parameters import leaves
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.passes.bindings import Binding


def is_written(binding: Binding, i: int) -> bool:
    """Whether a call has written to the leaf of parameter `i`."""
    leaf = binding.tensors[i]
    if leaves.is_written(leaf) or binding.leaf_watch.is_moved(i):
        return True
    # Through numpy, for example. Only inconsistent steps write to the original meanwhile.
    original = binding.originals.get(i)
    if original is None or binding.hosted.parameter_states[i].changes != binding.changes[i]:
        return False
    return not torch.equal(_bytes(original), _bytes(leaf))


def take_over(binding: Binding, places: Sequence[int], raised: bool) -> None:
    """Applies the values that a call has written to leaves to the parameters.

    Args:
        binding: The module of the call.
        places: Indices of the parameters whose leaves it has written to.
        raised: Whether it has raised; then values that other calls have written meanwhile stay, without an error.

    Raises:
        InvalidArgumentError: A leaf has another shape or dtype than its parameter, or memory of another tensor.
        RuntimeError: Other calls have written to one of them meanwhile.
    """
    _check_kinds(binding, places)
    moved = []
    for i in places:
        watch = binding.watches[i]
        if watch is not None and not binding.leaf_watch.is_moved(i):
            # Written in place: the values are there already, unless a step has moved the parameter meanwhile.
            binding.parameter_locks.note_written(watch.pin)
            binding.hosted.parameter_states[i].writes += 1
            watch.seen += 1
            if binding.parameters[i].data_ptr() == binding.leaf_watch.pointer(i):
                continue
        moved.append(i)
    parameter_states = [binding.hosted.parameter_states[i] for i in moved]
    if any(
        parameter_state.changes != binding.changes[i]
        for i, parameter_state in zip(moved, parameter_states, strict=True)
    ):
        if raised:
            return
        raise RuntimeError(
            f"{binding.code} has written to parameters of {binding.hosted} that others have changed at the same time; "
            "theirs were kept. Call it again: it will have the parameters for itself"
        )
    parameters = [binding.parameters[i] for i in moved]
    with binding.parameter_locks.writing(parameters, parameter_states, consistent=True):
        write(parameters, [binding.tensors[i].detach() for i in moved], binding.kept_tensors())


def _check_kinds(binding: Binding, places: Sequence[int]) -> None:
    for i in places:
        tensor, parameter = binding.tensors[i], binding.parameters[i]
        if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
            raise InvalidArgumentError(
                f"{binding.code} has given parameter {binding.name(i)!r} of {binding.hosted} another shape or dtype; "
                "those of a hosted module are fixed, and nothing was changed"
            )
        if binding.leaf_watch.is_moved(i):
            _check_memory(binding, i)


def _check_memory(binding: Binding, i: int) -> None:
    others = [tensor for tensor in binding.tensors if tensor is not binding.tensors[i]]
    owner = taken_memory(binding.tensors[i], others, binding.kept_tensors())
    if owner:
        raise InvalidArgumentError(
            f"{binding.code} has given parameter {binding.name(i)!r} of {binding.hosted} the memory of {owner}. Hosted "
            "parameters have memory of their own, and nothing was changed. Give it a copy, with clone()"
        )


def taken_memory(moved: torch.Tensor, others: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> str:
    """Describes the tensor that shares the memory of a moved leaf.

    Args:
        moved: A leaf that has other memory than at the beginning.
        others: The leaves of the other parameters of the module.
        kept: The tensors that the module keeps besides its parameters.

    Returns:
        A phrase for an error message; empty if the memory is its own.
    """
    if is_within(moved, others):
        return "another parameter"
    return "a tensor that the module keeps" if is_within(moved, kept) else ""


def write(parameters: Sequence[torch.Tensor], values: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> None:
    """Sets values of parameters. A value may be in the memory of another parameter, after a swap.

    Args:
        parameters: The parameters.
        values: The value of each parameter.
        kept: The tensors that the module keeps beside its parameters.
    """
    used = {_memory(each) for each in (*values, *kept) if each.layout is torch.strided}
    for parameter, value in zip(parameters, values, strict=True):
        if _memory(parameter) in used:
            parameter.data = value.clone()
        else:
            parameter.data.copy_(value)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, which can be compared also where they are NaN."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
