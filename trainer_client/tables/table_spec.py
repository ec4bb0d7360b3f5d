"""The table that a program asks for, and what is checked of tables beside parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import torch

from ps_wire.codec.names import name_of
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables import options
from ps_wire.tables.lifecycle import Admission, Eviction

if TYPE_CHECKING:
    from ps_wire.policies import Policy
    from trainer_client.optimizers.creation import NonFinite
    from trainer_client.tables.table import Table

_DEFAULTS: Final[Mapping[str, Any]] = {
    "rows": None,
    "dtype": torch.float32,
    "init": options.to_plain(options.Normal()),
    "optimizer": options.to_plain(options.SGD()),
    "seed": 0,
    "max_rows": None,
    "groups": [],
    "admit": None,
    "evict": None,
}


class TableSpec(NamedTuple):
    """The arguments of `Client.table`; None for what is left to the default, or to the table that exists."""

    name: str
    dim: int | None = None
    rows: int | None = None
    dtype: torch.dtype | None = None
    init: options.Initialisation | None = None
    optimizer: options.RowOptimizer | None = None
    seed: int | None = None
    max_rows: int | None = None
    groups: Sequence[options.RowGroup] | None = None
    owners: Sequence[str] | None = None
    admit: Admission | None = None
    evict: Eviction | None = None
    non_finite: NonFinite | None = None
    policy: Policy | None = None
    replace: bool = False

    def check(self) -> None:
        """Checks what does not need an owner."""
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgumentError(f"the name of a table is a text, not {_told(self.name)}")
        if self.owners is not None and (
            not isinstance(self.owners, Collection)
            or isinstance(self.owners, (str, bytes, torch.Tensor))
            or not all(isinstance(each, str) for each in self.owners)
        ):
            raise InvalidArgumentError(f'owners= is a list of names, such as ["ps0", "ps1"], not {self.owners!r}')
        _check("optimizer", self.optimizer, options.RowOptimizer)
        _check("init", self.init, options.Initialisation)
        _check("admit", self.admit, Admission)
        _check("evict", self.evict, Eviction)
        if self.groups is not None:
            listed = isinstance(self.groups, list | tuple)
            if not listed or not all(isinstance(each, options.RowGroup) for each in self.groups):
                raise InvalidArgumentError(
                    f"groups= is a list of values such as tc.tables.RowGroup(low, high, lr=…), not {_told(self.groups)}"
                )
        if self.rows is not None and (self.admit is not None or self.evict is not None):
            raise InvalidArgumentError("ids are admitted and rows are evicted in tables that grow, without rows=")

    @property
    def given(self) -> dict[str, Any]:
        """What is not left to a default, as arguments of the constructor on an owner."""
        of_optimizer = ("non_finite", "policy", "replace")
        given = {name: value for name, value in self._asdict().items() if name not in of_optimizer}
        own = {name: value for name, value in given.items() if value is not None}
        for name in ("init", "optimizer", "admit", "evict"):
            if name in own:
                own[name] = options.to_plain(own[name])
        if "groups" in own:
            # They do not overlap, so their order does not matter.
            own["groups"] = [options.to_plain(each) for each in sorted(own["groups"], key=lambda each: each.low)]
        if "owners" in own:
            own["owners"] = sorted(own["owners"])
        return own

    def settings(self, owners: Sequence[str]) -> dict[str, Any]:
        """As the arguments of the constructor on each of these owners."""
        # In the order of the fields, in which messages name what differs.
        return {"name": self.name, "dim": self.dim, **_DEFAULTS, **self.given, "owners": list(owners)}


def _check(name: str, value: Any, kinds: Any) -> None:
    """Raises `InvalidArgumentError` if the value of an option is neither None nor one of these kinds."""
    if value is not None and not isinstance(value, kinds):
        known = [f"tc.tables.{each.__name__}(…)" for each in get_args(kinds) or (kinds,)]
        one_of = "one of " if len(known) > 1 else ""
        raise InvalidArgumentError(f"{name}= is {one_of}{', '.join(known)}, not {_told(value)}")


def _told(value: Any) -> str:
    """A value in a message; of a tensor or another large value only the type."""
    told = repr(value)
    return told if len(told) <= 100 and not isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def check_only_tables(tables: Sequence[Table], cls: Any, given: Sequence[str]) -> None:
    """Raises `InvalidArgumentError` if a class or other arguments were given for an optimizer that has only tables."""
    if cls is None and not given:
        return
    named = [*([] if cls is None else [name_of(cls)]), *(f"{each}=" for each in given)]
    listed = ", ".join(table.name for table in tables)
    raise InvalidArgumentError(
        f"nothing here would have {', '.join(named)}: there are only tables, and the rows of each step with the "
        "optimizer that it was made with. Give that, a policy and non_finite= where you make the table, "
        f"ps.table({tables[0].name!r}, dim={tables[0].dim}, optimizer=tc.tables.Adagrad(lr=…), policy=…). To step "
        f"tables together, say ps.optimizer(None, [{listed}])"
    )


def check_policies(tables: Sequence[Table], policy: Policy | None) -> None:
    """Checks that a policy for tables and parameters is the one that the tables have, as far as this client knows."""
    for table in tables:
        if policy is not None and table.optimizer.policy != policy:
            known = "none that this client has given" if table.optimizer.policy is None else table.optimizer.policy
            raise InvalidArgumentError(
                f"the policy {policy} would hold for the parameters alone: table {table.name!r} has its own, {known}. "
                f"Give it the same with ps.table({table.name!r}, …, policy=…), or later with "
                "table.optimizer.set_policy(…); or make an optimizer of the parameters alone, and step both with "
                "ctx.backward(loss, step=[opt, table.optimizer])"
            )


def differences(known: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Which arguments of a table that exists differ from those asked for; of options of one kind, which fields."""
    told: list[str] = []
    for name, wanted in asked.items():
        made = known.get(name)
        if made == wanted:
            continue
        if isinstance(made, dict) and isinstance(wanted, dict) and made.get("kind") == wanted.get("kind"):
            told += [
                f"{field}={made.get(field)!r} of {name}, not {value!r}"
                for field, value in wanted.items()
                if made.get(field) != value
            ]
        else:
            told.append(f"{name}={_short(made)}, not {_short(wanted)}")
    return " and ".join(told) or "other arguments"


def _short(value: Any) -> str:
    """A setting as a program writes it: options without the fields that have their defaults."""
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    if not (isinstance(value, dict) and "kind" in value):
        return repr(value)
    option = options.from_plain(value)
    given = [
        f"{field.name}={_short(getattr(option, field.name))}"
        for field in dataclasses.fields(option)
        if getattr(option, field.name) != field.default
    ]
    return f"{type(option).__name__}({', '.join(given)})"


def are_owners(owners: Sequence[str] | None, described: Mapping[str, Any]) -> bool:
    """Whether these, in the order of their names, are the owners of a table, or those that it was made on."""
    its = sorted(described["routing"]["owners"])
    return owners == its or owners == sorted(described["settings"]["owners"])
