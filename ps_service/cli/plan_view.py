"""Prints a plan of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from ps_service.cli.status_tables import table
from ps_service.cli.units import size
from ps_service.tables.plan import enough_owners

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

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
        {"owner": owner, "bytes": used, "memory": plan.budgets[owner], "fits": used <= plan.budgets[owner]}
        for owner, used in plan.used.items()
    ]
    parts = [
        {"table": part.table, "owner": part.owner, "slots": part.slots, "rows": part.rows, "bytes": part.nbytes}
        for part in plan.parts
    ]
    return {"fits": plan.fits, "verdict": verdict(plan, tables), "owners": owners, "parts": parts}


def _tables(tables: Sequence[PlannedTable]) -> Table:
    made = table("Tables", "table", ["rows", "dim", "a row"], ["dtype", "optimizer"])
    for each in tables:
        dtype, kind = str(each.dtype).removeprefix("torch."), each.optimizer.kind
        made.add_row(Text(each.name), dtype, kind, f"{each.rows:,}", str(each.dim), f"{each.row_bytes:,} B")
    return made


def _parts(plan: Plan) -> Table:
    made = table("Rows", "table", ["slots", "rows at most", "memory"], ["owner"])
    for part in plan.parts:
        words = Text(part.table), Text(part.owner)
        made.add_row(*words, f"{part.slots:,}", f"{part.rows:,}", size(part.nbytes))
    return made


def _owners(plan: Plan) -> Table:
    made = table("Owners", "owner", ["needs", "has", "used", ""])
    for owner, used in plan.used.items():
        budget = plan.budgets[owner]
        share = f"{used / budget:.0%}" if budget else ""
        fits = used <= budget
        state = Text("fits" if fits else f"{size(used - budget)} too much", style="green" if fits else "red")
        made.add_row(Text(owner), size(used), size(budget), share, state)
    return made
