"""`ps-service plan`: the file that it is given, and what it prints."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import rich.table
import torch
from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field
from rich.console import Console
from rich.text import Text

from ps_service.cli.status_tables import table
from ps_service.cli.units import size
from ps_service.tables.plan import PlannedTable, enough_owners
from ps_service.tables.plan import plan as make_plan
from ps_wire.close_names import hint
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables import options
from ps_wire.tables.lifecycle import Eviction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.tables.plan import Plan


class Table(BaseModel):
    """A table of the file, on all owners if it names none. `evict` has options of `tc.tables.Eviction`."""

    model_config = ConfigDict(extra="forbid")

    rows: Annotated[int, Field(ge=1), BeforeValidator(lambda value: _whole(value))]
    dim: int = Field(ge=1, le=65_536)
    optimizer: str | dict[str, Any] = "sgd"
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    owners: list[str] = []
    evict: dict[str, Any] | None = None

    def planned(self, name: str) -> PlannedTable:
        """What the plan takes. Raises `InvalidArgumentError` if an optimizer or an option is unknown."""
        optimizer = {"kind": self.optimizer} if isinstance(self.optimizer, str) else self.optimizer
        kind, known = optimizer.get("kind"), [each.kind for each in get_args(options.RowOptimizer)]
        if kind not in known:
            raise InvalidArgumentError(
                f"table {name!r} has the optimizer {kind!r}, which is unknown; there are {', '.join(known)}"
                f"{hint(str(kind), known)}"
            )
        evict = None if self.evict is None else options.from_plain(self.evict | {"kind": Eviction.kind})
        dtype = getattr(torch, self.dtype)
        made = options.from_plain(optimizer)
        return PlannedTable(name, self.rows, self.dim, made, dtype, tuple(self.owners), evict)


class PlanFile(BaseModel):
    """The file: the bytes that each owner has for tables, such as `16GiB`, and the tables, by name."""

    model_config = ConfigDict(extra="forbid")

    owners: dict[str, ByteSize] = Field(min_length=1)
    tables: dict[str, Table] = Field(min_length=1)


def read(file: Path) -> PlanFile:
    """Reads a file. Raises `OSError`, or a `ValueError` if it does not describe tables and owners."""
    return PlanFile.model_validate(tomllib.loads(file.read_text("utf-8")))


def planned(file: Path) -> tuple[list[PlannedTable], Plan]:
    """The tables of a file, and what each owner holds of them. Raises as `read`, and `InvalidArgumentError`."""
    wanted = read(file)
    tables = [table.planned(name) for name, table in wanted.tables.items()]
    return tables, make_plan(tables, wanted.owners)


def _whole(value: Any) -> Any:
    """A number of rows may be written as 50e6 or "50M"."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)([kMG])", value)):
        return int(float(match[1]) * {"k": 1e3, "M": 1e6, "G": 1e9}[match[2]])
    return value


def show(plan: Plan, tables: Sequence[PlannedTable]) -> None:
    """Prints what each owner holds, and whether it fits."""
    console = Console()
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


def _tables(tables: Sequence[PlannedTable]) -> rich.table.Table:
    made = table("Tables", "table", ["rows", "dim", "a row"], ["dtype", "optimizer"])
    for each in tables:
        dtype, kind = str(each.dtype).removeprefix("torch."), each.optimizer.kind
        made.add_row(Text(each.name), dtype, kind, f"{each.rows:,}", str(each.dim), f"{each.row_bytes:,} B")
    return made


def _parts(plan: Plan) -> rich.table.Table:
    made = table("Rows", "table", ["slots", "rows at most", "memory"], ["owner"])
    for part in plan.parts:
        words = Text(part.table), Text(part.owner)
        made.add_row(*words, f"{part.slots:,}", f"{part.rows:,}", size(part.nbytes))
    return made


def _owners(plan: Plan) -> rich.table.Table:
    made = table("Owners", "owner", ["needs", "has", "used", ""])
    for owner, used in plan.used.items():
        budget = plan.budgets[owner]
        share = f"{used / budget:.0%}" if budget else ""
        fits = used <= budget
        state = Text("fits" if fits else f"{size(used - budget)} too much", style="green" if fits else "red")
        made.add_row(Text(owner), size(used), size(budget), share, state)
    return made
