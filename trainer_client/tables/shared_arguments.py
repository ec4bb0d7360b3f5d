"""Checks what is asked of an optimizer over tables: each has its own, so not every argument can hold for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ps_wire.codec.names import name_of
from ps_wire.errors import InvalidArgumentError

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
