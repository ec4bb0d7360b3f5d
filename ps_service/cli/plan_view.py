"""Prints a plan of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ps_service.cli.units import size
from ps_service.tables.plan import enough_owners

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.tables.plan import Plan, PlannedTable


def show(plan: Plan, tables: Sequence[PlannedTable], console: Console | None = None) -> None:
    """Prints what each owner holds, and whether it fits."""
    console = console or Console()
    console.print(_tables(tables))
    console.print(_parts(plan))
    console.print(_owners(plan))
    console.print(verdict(plan, tables), highlight=False)


def verdict(plan: Plan, tables: Sequence[PlannedTable]) -> str:
    """Says whether the plan fits, and how many owners would be enough if it does not."""
    if plan.fits:
        return "It fits."
    budget = max(plan.budgets.values())
    enough = enough_owners(tables, budget)
    if not enough:
        return "It does not fit, on any number of owners with the memory of the largest."
    return f"It does not fit. {enough} owners with {size(budget)} each would hold all tables."


def as_json(plan: Plan, tables: Sequence[PlannedTable]) -> dict[str, Any]:
    """The plan as plain values, with bytes and rows as numbers."""
    owners = [
        {"owner": owner, "bytes": plan.used(owner), "memory": budget, "fits": plan.used(owner) <= budget}
        for owner, budget in plan.budgets.items()
    ]
    parts = [
        {"table": part.table, "owner": part.owner, "slots": part.slots, "rows": part.rows, "bytes": part.nbytes}
        for part in plan.parts
    ]
    return {"fits": plan.fits, "verdict": verdict(plan, tables), "owners": owners, "parts": parts}


def _tables(tables: Sequence[PlannedTable]) -> Table:
    view = _right(Table("table", "rows", "dim", "dtype", "optimizer", "bytes a row"), 1, 2, 5)
    for table in tables:
        dtype, kind = str(table.dtype).removeprefix("torch."), table.optimizer.kind
        view.add_row(table.name, f"{table.rows:,}", str(table.dim), dtype, kind, str(table.row_bytes))
    return view


def _parts(plan: Plan) -> Table:
    view = _right(Table("table", "owner", "slots", "rows at most", "memory"), 2, 3, 4)
    for part in plan.parts:
        view.add_row(part.table, part.owner, f"{part.slots:,}", f"{part.rows:,}", size(part.nbytes))
    return view


def _owners(plan: Plan) -> Table:
    view = _right(Table("owner", "needs", "has", "used", ""), 1, 2, 3)
    for owner, budget in plan.budgets.items():
        used = plan.used(owner)
        share = f"{used / budget:.0%}" if budget else ""
        state = "[green]fits[/]" if used <= budget else f"[red]{size(used - budget)} too much[/]"
        view.add_row(owner, size(used), size(budget), share, state)
    return view


def _right(table: Table, *columns: int) -> Table:
    """Aligns columns of numbers to the right."""
    for column in columns:
        table.columns[column].justify = "right"
    return table
