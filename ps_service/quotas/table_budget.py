"""The memory and the rows of tables that count for accounts."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from ps_service.tables.budget import TableBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ps_service.quotas.accounts import Account
    from ps_service.quotas.quotas import Quotas
    from ps_service.quotas.tallies import Tally
    from ps_wire.errors import PsError


class AccountBudget(TableBudget):
    """The budget of one account in that of all tables of an owner."""

    def __init__(self, quotas: Quotas, account: Account, of_all: TableBudget) -> None:
        super().__init__(of_all.owner, of_all.limit)
        self._of_all = of_all
        self._tallies: Sequence[Tally] = quotas.tallies(account)

    def watch(self, table: object) -> None:
        """As `TableBudget.watch`."""
        for each in self._budgets:
            each.watch(table)

    def note(self, table: object, nbytes: int, rows: int) -> None:
        """As `TableBudget.note`."""
        for each in self._budgets:
            each.note(table, nbytes, rows)

    def spare(self, kept: object, give_up: Callable[[], object]) -> None:
        """As `TableBudget.spare`."""
        self._of_all.spare(kept, give_up)

    def reclaim(self) -> bool:
        """As `TableBudget.reclaim`."""
        return self._of_all.reclaim()

    def _room(self, row_bytes: int) -> int:
        most: float = self._of_all.room(row_bytes)
        for each in self._tallies:
            most = min(most, each.quota.table_rows - each.tables.rows)
            most = min(most, (each.quota.table_bytes - each.tables.nbytes) // row_bytes)
        return sys.maxsize if most == math.inf else max(0, int(most))

    def exceeded(self, table: str, row_bytes: int) -> PsError:
        """As `TableBudget.exceeded`."""
        for each in self._tallies:
            for name, more in (("table_rows", 1), ("table_bytes", row_bytes)):
                used = each.used(name)
                if used + more > getattr(each.quota, name):
                    return each.exceeded(name, used)
        return self._of_all.exceeded(table, row_bytes)

    @property
    def _budgets(self) -> tuple[TableBudget, ...]:
        return self._of_all, *(each.tables for each in self._tallies)
