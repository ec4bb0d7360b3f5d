"""PowerSGD: a matrix of low rank, as two factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from ps_wire.compression import checks
from ps_wire.compression.codec import Codec, State, vector, work_dtype
from ps_wire.numbers import check_whole


@dataclass(frozen=True)
class PowerSGD(Codec):
    """One step of subspace iteration: factors P (m x r) and Q (n x r) for a gradient M of m x n elements.

    The first dimension of the tensor gives the rows, all others the columns. With Q from the message before (random at
    first): P = orthonormal basis of M Q, Q' = M^T P, y = P Q'^T = P P^T M. So ||y - M|| <= ||M||, and y = M if the rank
    of M is at most r, up to rounding. A tensor for which (m + n) r >= m n, such as a bias, is sent as it is. The
    factors are float64 for float64 tensors, else float32. NaN, infinity, and sums that overflow are refused by
    `encode`, except where a tensor is sent as it is. Dense tensors.

    Source: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
    NeurIPS 2019. There, P and Q are means over all workers; here each sender has its own.

    The state of a parameter is Q.

    Args:
        rank: The largest rank r.

    Raises:
        InvalidArgumentError: `rank` is not from 1 to 2^20.
    """

    rank: int = 2

    name = "powersgd"

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, 1, 1 << 20)

    def _encode(self, values: torch.Tensor, state: State) -> Sequence[torch.Tensor]:
        sizes = self._sizes(values.shape)
        if sizes is None:
            return (vector(values).clone(),)
        rows, columns = sizes
        work = work_dtype(values.dtype)
        matrix = vector(values).to(work).view(rows, columns)
        before = state.get("q")
        if not isinstance(before, torch.Tensor) or before.shape != (columns, self.rank) or before.dtype != work:
            before = _start(columns, self.rank, work)
        product = matrix @ before
        # The product of a matrix with NaN or infinity may be finite if the kernel skips factors of 0.
        checks.refuse_non_finite(checks.finite(matrix) and checks.finite(product), self.name)
        left = torch.linalg.qr(product).Q
        right = matrix.T @ left
        checks.refuse_non_finite(checks.finite(right), self.name)
        if right.any():
            state["q"] = right
        return left.reshape(-1), right.reshape(-1).clone()

    def _decode(self, parts: Sequence[torch.Tensor], shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        sizes = self._sizes(shape)
        if sizes is None:
            checks.number_of(parts, 1, self.name)
            return checks.flat(parts[0], dtype, shape.numel(), "a small tensor").clone().view(shape)
        checks.number_of(parts, 2, self.name)
        rows, columns = sizes
        left = checks.flat(parts[0], work_dtype(dtype), rows * self.rank, "the left factor of powersgd")
        right = checks.flat(parts[1], work_dtype(dtype), columns * self.rank, "the right factor of powersgd")
        checks.finite_values(left)
        checks.finite_values(right)
        return (left.view(rows, self.rank) @ right.view(columns, self.rank).T).to(dtype).view(shape)

    def _sizes(self, shape: torch.Size) -> tuple[int, int] | None:
        """Rows and columns; None for what is sent as it is."""
        if len(shape) < 2 or not shape.numel():
            return None
        rows, columns = shape[0], shape[1:].numel()
        return (rows, columns) if (rows + columns) * self.rank < rows * columns else None


@lru_cache(maxsize=64)
def _start(columns: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    """The first Q of every tensor of these sizes; the generator of torch is not used."""
    return torch.randn(columns, rank, dtype=dtype, generator=torch.Generator().manual_seed(columns), device="cpu")
