"""The optimizer of the rows of tables, as one of torch's, so that everything that is true of those holds for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from torch import optim

from ps_service.tables.stand_in import AllRows
from ps_wire.codec.names import full_name
from ps_wire.decorators import hosted
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.options import from_plain


@hosted
class RowOptimizer(optim.Optimizer):
    """Has tables update the rows that have a gradient. What it keeps for a row is with the row, in the table. A step
    does not raise once `check_step` has accepted the options, whose class has the full name `options_class`."""

    never_half_done = True

    def __init__(self, params: Iterable[Any], kind: str, **options: Any) -> None:
        self._kind = kind
        made = from_plain({"kind": kind, **options})
        self.options_class = full_name(type(made))
        self._names = [each.name for each in fields(made)]
        super().__init__(params, {name: getattr(made, name) for name in self._names})
        for group in self.param_groups:
            for parameter in group["params"]:
                if not isinstance(parameter, AllRows):
                    raise InvalidArgumentError("the optimizer of a table is for tables only")
                if parameter.table.shard.optimizer.kind != kind:
                    raise InvalidArgumentError(f"{parameter.table} was made for another optimizer than {kind!r}")

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raises `InvalidArgumentError` if options cannot be changed to these values."""
        for group in self.param_groups:
            changed = from_plain({"kind": self._kind, **self._options(group), **options})
            if bool(getattr(changed, "momentum", 0)) != bool(group.get("momentum", 0)):
                raise InvalidArgumentError("momentum can not be switched on or off once the table has been made")

    def check_groups(self, groups: Iterable[Mapping[str, Any]]) -> None:
        """Checks the options of groups that are about to be loaded. Raises as `check_options`."""
        for group in groups:
            self.check_options({name: group[name] for name in self._names if name in group})

    def check_step(self) -> None:
        """Checks that the tables take the options as they are now: schedulers of torch write any value into groups."""
        for group in self.param_groups:
            options = self._options(group)
            for parameter in group["params"]:
                parameter.table.changed(options)

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Applies the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.table.apply(parameter.grad, self._options(group))

    def _options(self, group: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _plain(group[name]) for name in self._names}


def _plain(value: Any) -> Any:
    """A value as options have it: a learning rate may be a tensor with one element."""
    if isinstance(value, list):
        return tuple(value)
    return float(value) if hasattr(value, "item") else value
