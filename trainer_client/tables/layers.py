"""Layers that look up in tables, with the signatures of torch's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ps_wire.errors import InvalidArgumentError
from ps_wire.tables.bags import check_mode
from trainer_client.tables.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer_client.pending import Pending


class _Layer(nn.Module):
    """A layer over a table."""

    instead_of_sending: Final = Table.instead_of_sending

    def __init__(self, table: Any, padding_idx: int | None = None) -> None:
        super().__init__()
        self.table = unwrapped_table(table)
        self.num_embeddings = self.table.rows
        self.embedding_dim = self.table.dim
        # Of a table of fixed size, a negative id counts from its end, as in torch.
        if padding_idx is not None and self.num_embeddings is not None and padding_idx < 0:
            padding_idx += self.num_embeddings
        self.padding_idx = padding_idx


class Embedding(_Layer):
    """Looks up rows of a table, as `torch.nn.Embedding` does in its own.

    Its forward waits for the owners, so it runs in a plain thread, as with the blocking client: not in the thread of an
    event loop, where `await table(ids)` does the same. The rows are no parameters of the layer, nor part of its state:
    `table.optimizer` steps them.

    Args:
        table: The table.
        padding_idx: An id whose row is zero and gets no gradient.

    Attributes:
        table: As the argument.
        num_embeddings: Number of rows; None for a table that grows.
        embedding_dim: Numbers in a row.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The rows of ids.

        Args:
            input: int64 or int32 of any shape.

        Returns:
            [*input.shape, embedding_dim].

        Raises:
            RuntimeError: This is the thread of the client's event loop.
            PsError: As for the table.
        """
        if self.padding_idx is None:
            return _waited(self.table, input)
        there = input != self.padding_idx
        rows = _waited(self.table, input[there])
        return rows.new_zeros(*input.shape, self.embedding_dim).masked_scatter(there.unsqueeze(-1), rows)

    def extra_repr(self) -> str:
        return repr(self.table)


class EmbeddingBag(_Layer):
    """Pools rows of a table, as `torch.nn.EmbeddingBag` does with its own. Runs where `Embedding` does.

    Args:
        table: The table.
        mode: "mean", "sum" or "max".
        include_last_offset: Whether offsets have the end of the last bag, too.
        padding_idx: An id that counts for nothing.

    Attributes:
        table: As the argument, like `mode`, `include_last_offset` and `padding_idx`.
        num_embeddings: Number of rows; None for a table that grows.
        embedding_dim: Numbers in a row.

    Raises:
        InvalidArgumentError: There is no such mode.
    """

    def __init__(
        self, table: Any, mode: str = "mean", include_last_offset: bool = False, padding_idx: int | None = None
    ) -> None:
        check_mode(mode)
        super().__init__(table, padding_idx)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self, input: torch.Tensor, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The pooled rows of bags; arguments as for `Table.bag`.

        Returns:
            [bags, embedding_dim].

        Raises:
            RuntimeError: This is the thread of the client's event loop.
            PsError: As for the table.
        """
        of_layer = self.include_last_offset, self.padding_idx
        return _waited(self.table.bag, input, offsets, self.mode, per_sample_weights, *of_layer)

    def extra_repr(self) -> str:
        return f"{self.table!r}, mode={self.mode!r}"


def _waited(look_up: Callable[..., Pending[torch.Tensor]], *arguments: Any) -> torch.Tensor:
    """The result of a look-up. `torch.compile` compiles what stands before and behind it, and not the look-up."""
    if torch.compiler.is_dynamo_compiling():
        result: torch.Tensor = torch.compiler.disable(_wait)(look_up, *arguments)
        return result
    return _wait(look_up, *arguments)


def _wait(look_up: Callable[..., Pending[torch.Tensor]], *arguments: Any) -> torch.Tensor:
    return look_up(*arguments).wait()


def unwrapped_table(given: Any) -> Table:
    """The table itself, also of what the blocking client returns. Raises `InvalidArgumentError` if it is no table."""
    found = getattr(given, "unwrapped", given)
    if not isinstance(found, Table):
        raise InvalidArgumentError(f"the layer needs a table, as Client.table() returns, not a {type(given).__name__}")
    return found
