"""Earlier values of parameters, with which stale gradients are corrected."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

import torch

from ps_service.policies.rules import OLDEST_COMPENSATED
from ps_service.tables.backups import RowBackups
from ps_service.tables.row_gradients import rows_gradient
from ps_service.tables.stand_in import AllRows, summed_rows
from ps_wire.runtime.locks import ReportingLock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.parameters.state import ParameterState

_log = logging.getLogger(__name__)

_MOST: Final = OLDEST_COMPENSATED + 1
"""How many values of a parameter are kept, the present one included."""


class ParameterHistory:
    """The last values of the parameters of an optimizer, by how many steps had been applied to each of them, and the
    strength of the correction. It is told of steps of all optimizers, and of other writes, which count as steps. Of a
    parameter, copies are kept; of the rows of a table, copies of those that the steps between have changed. Safe from
    several threads."""

    def __init__(
        self, parameters: Sequence[torch.Tensor], parameter_states: Sequence[ParameterState], strength: float
    ) -> None:
        self.strength = strength
        self._states = parameter_states
        self._values = [
            _Rows(each, strength) if isinstance(each, AllRows) else _Copies(each, strength) for each in parameters
        ]
        self._of_state = dict(zip(map(id, parameter_states), self._values, strict=True))
        # By version of the optimizer, the number of steps of each parameter.
        self._versions: OrderedDict[int, list[int]] = OrderedDict()
        self._lock = ReportingLock()
        for state in parameter_states:
            state.follow(self)

    def keep(self, state: ParameterState) -> None:
        """Keeps the present values of a parameter; forgets those that are too old. What has changed them is done, and
        maybe of another optimizer, so it does not fail if there is no memory to keep them."""
        with self._lock:
            try:
                self._of_state[id(state)].keep(state.steps)
            except (MemoryError, RuntimeError):
                _log.warning(
                    "values of a parameter were not kept: gradients that they lead to stay as they are", exc_info=True
                )

    def reach(self, version: int) -> None:
        """The optimizer has a version from now on, with the present values."""
        with self._lock:
            for state, values in zip(self._states, self._values, strict=True):
                if not values.has(state.steps):
                    values.keep(state.steps)
            self._versions.setdefault(version, [each.steps for each in self._states])
            while len(self._versions) > _MOST:
                self._versions.popitem(last=False)

    def compensated(
        self, gradients: Sequence[torch.Tensor | None], read: int, steps: Sequence[int | None] | None = None
    ) -> list[torch.Tensor | None]:
        """The gradients g + strength * g * g * (now - then), elementwise. `then` was each parameter after so many
        `steps`; where that is not known, at the version `read` of the optimizer. Gradients are returned as they are if
        the parameter has not changed since, or has those values no more: they are from before the policy was set."""
        with self._lock:
            of_version = self._versions.get(read)
            found = []
            for place, gradient in enumerate(gradients):
                count = None if steps is None else steps[place]
                if count is None and of_version is not None:
                    count = of_version[place]
                values = self._values[place]
                if gradient is not None and count is not None and count != self._states[place].steps:
                    gradient = values.compensated(gradient, count) if values.has(count) else gradient
                found.append(gradient)
            return found


class _Copies:
    """Copies of one parameter, by the number of steps that had been applied to it."""

    def __init__(self, parameter: torch.Tensor, strength: float) -> None:
        self._parameter = parameter
        self._strength = strength
        self._copies: OrderedDict[int, torch.Tensor] = OrderedDict()

    def has(self, steps: int) -> bool:
        return steps in self._copies

    def keep(self, steps: int) -> None:
        self._copies[steps] = self._parameter.detach().clone()
        while len(self._copies) > _MOST:
            self._copies.popitem(last=False)

    def compensated(self, gradient: torch.Tensor, steps: int) -> torch.Tensor:
        strength, now, then = self._strength, self._parameter.detach(), self._copies[steps]
        if not gradient.is_sparse:
            return gradient + strength * gradient * gradient * (now - then)
        sparse = gradient.coalesce()
        index, values = sparse.indices(), sparse.values()
        moved = now[tuple(index)] - then[tuple(index)]
        return torch.sparse_coo_tensor(
            index,
            values + strength * values * values * moved,
            sparse.shape,
            is_coalesced=True,
            check_invariants=False,
            device=values.device,
        )


class _Rows:
    """The rows of a table, as `_Copies` of a parameter."""

    def __init__(self, parameter: AllRows, strength: float) -> None:
        self._backups = RowBackups(parameter.table)
        self._strength = strength
        self._kept: deque[int] = deque()

    def has(self, steps: int) -> bool:
        return steps in self._kept

    def keep(self, steps: int) -> None:
        self._backups.end(steps)
        if not self.has(steps):
            self._kept.append(steps)
        while len(self._kept) > _MOST:
            self._kept.popleft()
        self._backups.forget(self._kept[0])

    def compensated(self, gradient: torch.Tensor, steps: int) -> torch.Tensor:
        keys, rows = summed_rows(gradient)
        return rows_gradient(keys, rows + self._strength * rows * rows * self._backups.moved(keys, steps))
