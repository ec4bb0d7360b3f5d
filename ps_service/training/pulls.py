"""Copies what a replica of a module lacks: parameters and buffers that have changed since it last had them."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from ps_wire.codec.tensors import bytes_of, plain
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.hosting.objects import HostedObject
    from ps_service.parameters.locks import ParameterLocks


class Pulled(NamedTuple):
    """What a replica lacks, as copies: parameters at these positions in `HostedObject.parameters`, and all buffers,
    None if it has them.

    Marks are numbers that differ after every change of a parameter, 0 while one is in progress; steps are those that
    were applied to it. The mark of the buffers is a digest, empty if there are none.
    """

    positions: list[int]
    parameters: list[torch.Tensor]
    marks: list[int]
    steps: list[int]
    buffers: dict[str, torch.Tensor] | None
    buffers_mark: bytes


def pull(
    locks: ParameterLocks, hosted: HostedObject, marks: Sequence[int], buffers_mark: bytes, consistent: bool
) -> Pulled:
    """Copies the parameters and buffers of a module that a replica with the given marks lacks; it has none at first.

    If `consistent`, all parameters are read between the same two steps. Otherwise nothing is waited for, and one may be
    copied while a step writes it. Raises `InvalidArgumentError` if it is no module, or has another number of
    parameters, and `WouldBlock` if a step is in progress, and this thread must not wait.
    """
    module = hosted.value
    if not isinstance(module, nn.Module):
        raise InvalidArgumentError(f"{hosted} is no module, so it has no replicas")
    parameters, states = list(hosted.parameters.values()), hosted.parameter_states
    if marks and len(marks) != len(states):
        raise InvalidArgumentError(f"{hosted} has {len(states)} parameters, the replica has marks of {len(marks)}")
    before = [each.writes for each in states]
    with ExitStack() as stack, torch.no_grad():
        if consistent:
            reading = stack.enter_context(locks.reading(parameters, states))
            sources: Sequence[torch.Tensor] = reading.leaves
            changes, steps = reading.changes, reading.steps
        else:
            sources = [state.visible_of(each) for each, state in zip(parameters, states, strict=True)]
            changes, steps = [each.changes for each in states], [each.steps for each in states]
        # After the counts: a write that has ended by now is part of them and of the copies.
        now = [
            0 if state.writing or state.stepped else state.first_mark + count + writes
            for state, count, writes in zip(states, changes, before, strict=True)
        ]
        lacking = [i for i, mark in enumerate(now) if not marks or not mark or mark != marks[i]]
        copies = [sources[i].detach().clone() for i in lacking]
        stack.enter_context(hosted.internals.quiet())
        buffers = {name: each.detach() for name, each in module.named_buffers()}
        mark = _mark(buffers)
        own = None if mark == buffers_mark else {name: each.clone() for name, each in buffers.items()}
    return Pulled(lacking, copies, [now[i] for i in lacking], [steps[i] for i in lacking], own, mark)


def _mark(buffers: dict[str, torch.Tensor]) -> bytes:
    """A digest of the values of buffers. They are small, and hosted code changes them without a count."""
    if not buffers:
        return b""
    digest = hashlib.blake2b(digest_size=16)
    for name, buffer in buffers.items():
        digest.update(f"{name} {buffer.dtype} {tuple(buffer.shape)} ".encode())
        if buffer.layout is not torch.strided or buffer.is_quantized:
            raise InvalidArgumentError(f"the buffer {name!r} is sparse or quantized; replicas have dense ones")
        digest.update(bytes_of(plain(buffer)))
    return digest.digest()
