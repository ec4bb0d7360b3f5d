"""Checks what is asked of tables that exist, and of an optimizer over tables: each of these has its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ps_wire.codec.names import name_of
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables import options

if TYPE_CHECKING:
    from ps_wire.policies import Policy
    from trainer_client.tables.table import Table


def check_class(cls: Any) -> None:
    """Checks the class of an optimizer that has parameters.

    Raises:
        InvalidArgumentError: There is none.
    """
    if cls is None:
        raise InvalidArgumentError("parameters need the class of an optimizer, such as torch.optim.SGD, and not None")


def check_only_tables(tables: Sequence[Table], cls: Any, given: Sequence[str]) -> None:
    """Checks that nothing was asked of an optimizer that has tables and no parameters.

    Args:
        tables: The tables.
        cls: The class that was asked for.
        given: The names of the arguments that were given.

    Raises:
        InvalidArgumentError: There is a class, or an argument.
    """
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
    """Checks that a policy for tables and parameters is the one that the tables have, as far as this client knows.

    Raises:
        InvalidArgumentError: A table was made or found with another, or with none.
    """
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
    """The arguments that differ, with both values; of options of the same kind only the fields that differ.

    Args:
        known: The settings of the table that exists.
        asked: Those that the program asks for.
    """
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
        f"{field.name}={_plain(getattr(option, field.name))}"
        for field in dataclasses.fields(option)
        if getattr(option, field.name) != field.default
    ]
    return f"{type(option).__name__}({', '.join(given)})"


def _plain(value: Any) -> str:
    return _short(value) if isinstance(value, dict) else repr(value)
