"""A table for modules of this process that were written for owners: its look-ups wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

    from trainer_client.tables.contents import TableContents


class WaitingTable:
    """What the local copy of a hosted module gets for a table among the arguments of its constructor. Its calls and
    attributes are those of `ps_service.TableRef`. Look-ups wait for the owners, so the module runs in a plain thread,
    or in `asyncio.to_thread(module, …)`."""

    def __init__(self, table: TableContents) -> None:
        self._table: Final[Any] = table
        self.name, self.dim, self.dtype, self.rows = table.name, table.dim, table.dtype, table.rows

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids, as `TableRef` gives them."""
        found: torch.Tensor = self._table(ids).wait()
        return found

    def bag(self, ids: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        """The pooled rows of bags; arguments as for `TableRef.bag`."""
        found: torch.Tensor = self._table.bag(ids, *arguments, **named).wait()
        return found

    def __repr__(self) -> str:
        return f"<WaitingTable of {self._table!r}>"
