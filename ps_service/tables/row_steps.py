"""Steps of rows, and how a log has them: as the gradients, where those make the same rows again, bit for bit."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_service.tables.kernels import Grouped
from ps_service.tables.row_changes import RowChange
from ps_service.tables.rules import with_options
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.options import from_plain, to_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ps_service.tables.kernels import Kernels
    from ps_service.tables.population import Population
    from ps_service.tables.rows import Rows
    from ps_service.tables.rules import Groups

_MOST_SHORT: Final = 1 << 31
_OPTIONS_BYTES: Final = 512
"""At most the bytes of the options and names in a log."""


class RowSteps:
    """Steps of the rows of a shard. It is used under the lock of that."""

    def __init__(self, rows: Rows, population: Population, kernels: Kernels, groups: Groups) -> None:
        self._rows = rows
        self._population = population
        self._kernels = kernels
        self._groups = groups

    def make(self, numbers: torch.Tensor, gradients: Grouped) -> None:
        """Applies the gradients of different rows, of which these are the numbers, with the options as they are."""
        rows, options = self._rows, self._rows.rule.options
        # Updates depend on ids where there are groups of rows, and where the rounding of a row draws numbers.
        needs_ids = self._groups.groups or rows.values.dtype is not torch.float32
        ids = self._population.map.ids_of(numbers) if needs_ids else numbers
        rates = self._groups.rates(ids, options.lr, getattr(options, "weight_decay", 0.0))
        self._population.watchers.changing(numbers)
        self._kernels.update(rows, numbers, dataclasses.replace(gradients, ids=ids), rates)
        self._population.watchers.written(numbers)

    def change(self, gradients: Grouped) -> RowChange | None:
        """A step that was made with these gradients, which are named by key, as its gradients. None if they are not
        less than the rows that result, or might not give the same bits: if rows have gone since, or if what they
        become could depend on where they are."""
        rows, population = self._rows, self._population
        if self.nbytes(gradients) >= len(gradients.ids) * (8 + rows.row_bytes) or not self._kernels.repeats(rows):
            return None
        numbers = population.generations.numbers(gradients.ids)
        if population.default is not None and (numbers == population.default).any():
            return None
        if population.generations.current(gradients.ids) is not None:
            return None
        values: dict[str, Any] = {
            "ids": population.map.ids_of(numbers),
            "gradients": gradients.gradients,
            "options": to_plain(rows.rule.options),
        }
        if not gradients.is_of_different:
            is_short = max(len(gradients.sources), len(gradients.gradients)) < _MOST_SHORT
            kind = torch.int32 if is_short else torch.int64
            values["begins"], values["sources"] = gradients.begins.to(kind), gradients.sources.to(kind)
            values["scales"] = gradients.scales
        return RowChange("stepped", population.now(), values)

    @staticmethod
    def nbytes(gradients: Grouped) -> int:
        """At most the bytes of a step as its gradients."""
        count = len(gradients.ids)
        nbytes = _OPTIONS_BYTES + 8 * count + gradients.gradients.nbytes
        if not gradients.is_of_different:
            nbytes += 4 * (count + len(gradients.sources)) + gradients.scales.nbytes
        return nbytes

    def redo(self, change: RowChange) -> None:
        """Makes a step again that `change` has given. What are not rows any more is left out. Raises
        `InvalidArgumentError` where it might give other bits."""
        if not self._kernels.repeats(self._rows):
            raise InvalidArgumentError(
                "steps of a table are in the log as gradients, which give the same rows only with numba, as before: "
                "install numba"
            )
        values, population = change.values, self._population
        population.go_on(change.time)
        self._set_options(values["options"])
        numbers, gradients = population.map.find(values["ids"]), _grouped(values)
        there = numbers >= 0
        if not there.all():
            numbers, gradients = numbers[there], gradients.part(there)
        if len(numbers):
            self.make(numbers, gradients)

    def _set_options(self, plain: Mapping[str, Any]) -> None:
        rule, options = self._rows.rule, from_plain(plain)
        if options != rule.options:
            own = {each.name: getattr(options, each.name) for each in dataclasses.fields(options)}
            rule.options = with_options(rule, self._rows.values.width, own)


def _grouped(values: Mapping[str, Any]) -> Grouped:
    if "begins" not in values:
        return Grouped.of_different(values["ids"], values["gradients"])
    begins, sources = values["begins"].long(), values["sources"].long()
    return Grouped(values["ids"], begins, sources, values["scales"], values["gradients"])
