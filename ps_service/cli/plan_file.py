"""Reads the file that `ps-service plan` is given."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field

from ps_service.tables.plan import PlannedTable
from ps_wire.close_names import hint
from ps_wire.errors import InvalidArgumentError
from ps_wire.tables import options
from ps_wire.tables.life import Eviction


class Table(BaseModel):
    """A table of the file.

    Attributes:
        rows: How many rows it will have.
        dim: Width of a row.
        optimizer: The kind of its optimizer, or a table with its `kind` and options.
        dtype: Of its rows.
        owners: Names of its owners; all if empty.
        evict: Options of `tc.tables.Eviction` if rows are evicted; an owner keeps more for each row then.
    """

    model_config = ConfigDict(extra="forbid")

    rows: Annotated[int, Field(ge=1), BeforeValidator(lambda value: _whole(value))]
    dim: int = Field(ge=1, le=65_536)
    optimizer: str | dict[str, Any] = "sgd"
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    owners: list[str] = []
    evict: dict[str, Any] | None = None

    def planned(self, name: str) -> PlannedTable:
        """What the plan takes.

        Raises:
            InvalidArgumentError: There is no such optimizer, or it or the eviction has no such option.
        """
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
    """The file.

    Attributes:
        owners: The bytes that each owner has for tables, such as `16GiB`, by name.
        tables: The tables by name.
    """

    model_config = ConfigDict(extra="forbid")

    owners: dict[str, ByteSize] = Field(min_length=1)
    tables: dict[str, Table] = Field(min_length=1)


def read(file: Path) -> PlanFile:
    """Reads a file.

    Raises:
        OSError: It cannot be read.
        UnicodeDecodeError: It is not UTF-8.
        tomllib.TOMLDecodeError: It is not TOML.
        pydantic.ValidationError: It does not describe tables and owners.
    """
    return PlanFile.model_validate(tomllib.loads(file.read_text("utf-8")))


def _whole(value: Any) -> Any:
    """A number of rows may be written as 50e6 or "50M"."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)([kMG])", value)):
        return int(float(match[1]) * {"k": 1e3, "M": 1e6, "G": 1e9}[match[2]])
    return value
