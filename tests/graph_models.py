"""What random graphs are made of: small modules, of which each does one thing that a recorded call has to get right."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ps_service import RRef, hosted, remote

SIZE = 4
DTYPE = torch.float64


@hosted
class Several(nn.Module):
    """Several outputs in nested containers, of which one is no number to differentiate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIZE, SIZE, dtype=DTYPE))
        self.bias = nn.Parameter(torch.randn(SIZE, dtype=DTYPE))

    @remote
    def both(self, x: torch.Tensor, *, scale: float) -> dict[str, Any]:
        y = x @ self.weight
        return {"y": [y, (y * scale + self.bias).relu()], "argmax": y.argmax(-1), "shape": tuple(y.shape)}


@hosted
class Mix(nn.Module):
    """Inputs in nested containers and as keywords, one of them whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(SIZE, SIZE, dtype=DTYPE)
        self.b = nn.Linear(SIZE, SIZE, bias=False, dtype=DTYPE)

    def forward(self, pack: dict[str, Any], *, gate: torch.Tensor) -> torch.Tensor:
        first, (second, ids) = pack["first"], pack["rest"]
        return self.a(first) * torch.sigmoid(gate) + self.b(second) * ids.unsqueeze(-1)


@hosted
class Spoils(nn.Module):
    """Writes to its argument in place, as one may with any intermediate result."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(SIZE, dtype=DTYPE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(self.scale)
        x.add_(1)
        return x


@hosted
class DoublesFirst(nn.Module):
    """Writes to its first argument in place, and uses the second afterwards."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first.mul_(2) + second.exp()

    @remote
    def pair(self, pair: list[torch.Tensor]) -> torch.Tensor:
        return self(*pair)


@hosted
class Gives(nn.Module):
    """Gives out its parameter itself, and has one that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIZE, dtype=DTYPE))
        self.unused = nn.Parameter(torch.randn(SIZE, dtype=DTYPE))

    def forward(self) -> torch.Tensor:
        return self.weight


@hosted
class Echoes(nn.Module):
    """The same tensor twice, one that comes of an input alone, and the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIZE, SIZE, dtype=DTYPE)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> tuple[Any, ...]:
        y = torch.tanh(self.inner(x))
        return y, y, other.exp().clamp(max=10), x, None


@hosted
class Table(nn.Module):
    """An embedding; its gradient comes as rows if it is sparse."""

    def __init__(self, rows: int, sparse: bool) -> None:
        super().__init__()
        self.rows = nn.Embedding(rows, SIZE, sparse=sparse, dtype=DTYPE)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.rows(ids)


@remote
def product(kept: Any, factor: torch.Tensor) -> torch.Tensor:
    """Something computed from a result that stayed on the owner."""
    return kept.local_value() * factor


@remote
def are_same(values: list[Any], *others: Any, **named: Any) -> list[bool]:
    """Which of the values are the first one itself."""
    return [each is values[0] for each in (*values, *others, *named.values())]


@remote
def first_same(*lists: list[Any]) -> list[bool]:
    """Which items of the lists are the first one itself."""
    return [each is lists[0][0] for items in lists for each in items]


@remote
def squared(pair: list[torch.Tensor], third: torch.Tensor) -> list[torch.Tensor]:
    """The same tensor twice, computed from all arguments."""
    found = pair[0].sin() * pair[1].exp() * third
    return [found, found]


@hosted
class Score(nn.Bilinear):
    """The head of a recommender; its inputs are tensors, or results that stayed on the owner."""

    def forward(self, first: torch.Tensor | RRef, second: torch.Tensor | RRef) -> torch.Tensor:
        values = [each.local_value() if isinstance(each, RRef) else each for each in (first, second)]
        return super().forward(*values)
