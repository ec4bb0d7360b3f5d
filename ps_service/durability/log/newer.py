"""The parameters that a checkpoint has as they were later than the position at which its log goes on.

They are written one after the other while trainers go on. Records of the log before their own positions have changed
them already, and everything else not yet. A step of such a record steps the other parameters, and the rows that are
older than it. What sets an object to a state sets the rest of it.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from ps_service.training.optimizers import HostedOptimizer
from ps_wire.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import optim

    from ps_service.hosting.objects import HostedObject
    from ps_service.training.optimizers import Present
    from ps_service.training.round_gradients import RoundGradients


class _Known(NamedTuple):
    parameter: torch.Tensor
    ends: list[int]
    positions: list[int]


class Newer:
    """The rows of parameters that a checkpoint has as at later positions: a parameter, the end of the rows, 0 for all,
    and the position; in the order of positions."""

    def __init__(self, rows: Iterable[tuple[torch.Tensor, int, int]] = ()) -> None:
        self._known: dict[int, _Known] = {}
        self.until = 0
        for parameter, end, position in rows:
            known = self._known.setdefault(id(parameter), _Known(parameter, [], []))
            known.ends.append(end)
            known.positions.append(position)
            self.until = max(self.until, position)

    def older(self, parameter: torch.Tensor, position: int) -> int | None:
        """How many rows of a parameter, from the first on, are older than a record at a position; None if all are."""
        known = self._known.get(id(parameter)) if position < self.until else None
        if known is None:
            return None
        count = bisect_right(known.positions, position)
        if count == len(known.positions):
            return None
        return known.ends[count - 1] if count else 0

    def step(self, hosted: HostedOptimizer, gradients: RoundGradients, position: int) -> None:
        """Makes the step of a record, where parameters are older than that."""
        with hosted.lock:
            self.apply(hosted, position, gradients)
            hosted.version += 1

    def apply(self, hosted: HostedOptimizer, position: int, gradients: RoundGradients) -> bool:
        """Applies the gradients of a record, with the lock of the optimizer held. Returns whether there are any."""
        with ExitStack() as stack:
            there = hosted.check(gradients)
            present: list[Present] = []
            for covered, group, gradient in there:
                rows = self.older(covered.parameter, position)
                if rows is None:
                    present.append((covered, group, gradient))
                elif rows:
                    first = stack.enter_context(_first_rows(hosted.optimizer, group, covered.parameter, rows))
                    present.append((covered._replace(parameter=first), group, _rows_of(gradient, rows)))
            if present:
                hosted.write(present)
            for covered, _, _ in there:
                covered.parameter_state.steps += 1
            return bool(there)

    @contextmanager
    def kept(self, hosted: Iterable[HostedObject], position: int) -> Iterator[None]:
        """Keeps what is newer than a record of these objects, while a block loads a state into them."""
        with ExitStack() as stack:
            for each in hosted if position < self.until else ():
                if isinstance(each.value, HostedOptimizer):
                    for parameter in each.value.parameters:
                        if (rows := self.older(parameter, position)) is not None:
                            stack.enter_context(_state_kept(each.value.optimizer, parameter, rows))
                elif each.is_module:
                    for parameter in each.parameters.values():
                        if (rows := self.older(parameter, position)) is not None:
                            stack.enter_context(_rows_kept(parameter, rows))
            yield


@contextmanager
def _first_rows(optimizer: optim.Optimizer, group: int, parameter: torch.Tensor, rows: int) -> Iterator[torch.Tensor]:
    """The first rows of a parameter, in its place in an optimizer. What that keeps for them is in the same memory."""
    first = nn.Parameter(parameter.data[:rows], requires_grad=parameter.requires_grad)
    members = optimizer.param_groups[group]["params"]
    place = next(i for i, each in enumerate(members) if each is parameter)
    own = optimizer.state.get(parameter)
    if own is not None:
        optimizer.state[first] = {
            name: value[:rows] if _has_rows(value, parameter) else value for name, value in own.items()
        }
    members[place] = first
    try:
        yield first
    finally:
        members[place] = parameter
        for name, value in optimizer.state.pop(first, {}).items():
            if own is None or name not in own:
                raise InternalError(f"a step has begun to keep {name!r} for a part of a parameter")
            if not _has_rows(own[name], parameter):
                own[name] = value
            elif value.data_ptr() != own[name].data_ptr():
                own[name][:rows].copy_(value)


@contextmanager
def _state_kept(optimizer: optim.Optimizer, parameter: torch.Tensor, rows: int) -> Iterator[None]:
    """Keeps what an optimizer has for a parameter, but for its first rows. With none, all of it is kept."""
    before = optimizer.state.get(parameter)
    before = None if before is None else dict(before)
    yield
    if not rows:
        if before is not None:
            optimizer.state[parameter] = before
        else:
            optimizer.state.pop(parameter, None)
        return
    now = optimizer.state.get(parameter, {})
    for name, value in (before or {}).items():
        if _has_rows(value, parameter) and _has_rows(now.get(name), parameter):
            now[name][rows:].copy_(value[rows:])


@contextmanager
def _rows_kept(parameter: torch.Tensor, rows: int) -> Iterator[None]:
    before = (parameter.data[rows:] if rows else parameter.data).clone()
    yield
    (parameter.data[rows:] if rows else parameter.data).copy_(before)


def _has_rows(value: object, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape


def _rows_of(gradient: torch.Tensor, rows: int) -> torch.Tensor:
    """The gradient of the first rows of a parameter."""
    if not gradient.is_sparse:
        return gradient[:rows]
    indices, values = gradient._indices(), gradient._values()
    chosen = indices[0] < rows
    first = torch.sparse_coo_tensor(
        indices[:, chosen], values[chosen], (rows, *gradient.shape[1:]), check_invariants=False
    )
    return first._coalesced_(gradient.is_coalesced())
