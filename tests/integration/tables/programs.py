"""Random programs of look-ups and steps, and a table in plain torch to compare with."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

import trainer_client as tc

DIM = 3

IDS = st.one_of(st.integers(0, 12), st.sampled_from([-1, -(1 << 63), (1 << 63) - 1, 1 << 40, 99]))


class Rows(NamedTuple):
    """Looks up the row of each id."""

    ids: list[int]

    def arguments(self) -> Any:
        return torch.tensor(self.ids, dtype=torch.int64)


class Bag(NamedTuple):
    """Pools bags of ids."""

    bags: list[list[int]]
    mode: str
    weighted: bool

    def arguments(self) -> dict[str, Any]:
        ids = torch.tensor([each for bag in self.bags for each in bag], dtype=torch.int64)
        sizes = torch.tensor([0, *(len(bag) for bag in self.bags)])
        found = {"ids": ids, "offsets": sizes.cumsum(0)[:-1], "mode": self.mode}
        return found | ({"per_sample_weights": weights(len(ids))} if self.weighted else {})


def weights(count: int) -> torch.Tensor:
    return torch.arange(count) * 0.25 - 1


LOOK_UPS = st.one_of(
    st.builds(Rows, st.lists(IDS, max_size=8)),
    st.builds(Bag, st.lists(st.lists(IDS, max_size=4), min_size=1, max_size=4), st.just("sum"), st.booleans()),
    st.builds(Bag, st.lists(st.lists(IDS, max_size=4), min_size=1, max_size=4), st.just("mean"), st.just(False)),
)
STEPS = st.lists(st.lists(LOOK_UPS, min_size=1, max_size=3), min_size=1, max_size=3)


def coefficients(like: torch.Tensor, seed: int) -> torch.Tensor:
    """The gradient of a result: not of its values, so that it has the same bits however a table is split."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))


class Local:
    """A table in this process, with an optimizer written out.

    Args:
        first: The values that rows begin with, by id.
        optimizer: SGD without momentum, or RowWiseAdagrad.
    """

    def __init__(self, first: dict[int, torch.Tensor], optimizer: tc.tables.SGD | tc.tables.RowWiseAdagrad) -> None:
        self.rows = {id: row.clone() for id, row in first.items()}
        self._sums = dict.fromkeys(first, 0.0)
        self._optimizer = optimizer

    def step(self, look_ups: list[Rows | Bag], seed: int) -> list[torch.Tensor]:
        """Looks up, propagates and steps; returns the results."""
        ids = sorted(self.rows)
        place = {id: number for number, id in enumerate(ids)}
        weight = torch.stack([*(self.rows[id] for id in ids), torch.zeros(DIM)]).requires_grad_()
        results = []
        for look_up in look_ups:
            if isinstance(look_up, Rows):
                results.append(weight[torch.tensor([place[id] for id in look_up.ids], dtype=torch.int64)])
            else:
                given = look_up.arguments()
                given["ids"] = torch.tensor([place[id] for bag in look_up.bags for id in bag], dtype=torch.int64)
                results.append(torch.nn.functional.embedding_bag(given.pop("ids"), weight, **given))
        loss = sum((each * coefficients(each, seed + n)).sum() for n, each in enumerate(results))
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        assert weight.grad is not None
        for id in ids_of([look_ups]):
            self._update(id, weight.grad[place[id]])
        return [each.detach() for each in results]

    def _update(self, id: int, gradient: torch.Tensor) -> None:
        rate: float = self._optimizer.lr
        if isinstance(self._optimizer, tc.tables.RowWiseAdagrad):
            self._sums[id] += float(gradient.square().mean())
            rate /= self._sums[id] ** 0.5 + self._optimizer.eps
        self.rows[id] -= rate * gradient


def ids_of(steps: list[list[Rows | Bag]]) -> list[int]:
    """All ids of a program."""
    found: set[int] = set()
    for step in steps:
        for look_up in step:
            found.update(*([look_up.ids] if isinstance(look_up, Rows) else look_up.bags))
    return sorted(found)
