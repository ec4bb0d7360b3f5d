"""Tests that a model written for torch's embeddings keeps its forward."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import nn

import trainer_client as tc
import trainer_client.nn as layers


class Model(nn.Module):
    """A model that is given its embeddings."""

    def __init__(self, bags: nn.Module, rows: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags, self.rows, self.head = bags, rows, nn.Linear(3, 1)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor, single: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.bags(ids, offsets) + self.rows(single))
        return found.square().mean()


IDS, OFFSETS, SINGLE = torch.tensor([1, 2, 2, 5, 7]), torch.tensor([0, 0, 3]), torch.tensor([[7], [0], [7]])


def local_twin(bags: torch.Tensor, rows: torch.Tensor, mode: str) -> Model:
    local = Model(nn.EmbeddingBag(9, 3, mode=mode, padding_idx=2), nn.Embedding(9, 3, padding_idx=0))
    with torch.no_grad():
        local.bags.weight.copy_(bags)  # type: ignore[operator]
        local.rows.weight.copy_(rows)  # type: ignore[operator]
        local.rows.weight[0] = 0  # type: ignore[index]
    return local


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
def test_the_same_forward_trains_as_locally(owner_beside: str, mode: str) -> None:
    with tc.connect(owner_beside) as ps:
        tables = [
            ps.table(f"{name} {mode}", 3, tc.tables.SGD(lr=0.1), rows=9, init=tc.tables.Normal(1.0))
            for name in ("a", "b")
        ]
        model = Model(layers.EmbeddingBag(tables[0], mode, padding_idx=2), layers.Embedding(tables[1], padding_idx=0))
        everything = torch.arange(9)
        local = local_twin(tables[0](everything), tables[1](everything), mode)
        assert list(model.state_dict()) == ["head.weight", "head.bias"]
        opt = ps.optimizer(torch.optim.SGD, [*(each.unwrapped for each in tables), *model.parameters()], lr=0.1)
        twin = torch.optim.SGD(local.parameters(), lr=0.1)
        for _ in range(3):
            with ps.context() as ctx:
                loss = model(IDS, OFFSETS, SINGLE.view(3))
                ctx.backward(loss)
                opt.step(ctx)
            twin.zero_grad()
            expected = local(IDS, OFFSETS, SINGLE.view(3))
            expected.backward()
            twin.step()
            torch.testing.assert_close(loss.detach(), expected.detach())
        torch.testing.assert_close(tables[0](everything), local.bags.weight.detach())  # type: ignore[union-attr]
        torch.testing.assert_close(tables[1](everything)[1:], local.rows.weight[1:].detach())  # type: ignore[index]
        torch.testing.assert_close(model.head.weight, local.head.weight)
        assert f"a {mode}" in repr(model)


# Torch's own compiler reads the .grad of what a look-up returns.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model_trains_as_one_that_is_not(owner_beside: str) -> None:
    with tc.connect(owner_beside) as ps:
        bags = ps.table("bags", 3, tc.tables.SGD(lr=0.1), rows=9, init=tc.tables.Normal(1.0))
        rows = ps.table("rows", 3, tc.tables.SGD(lr=0.1), rows=9, init=tc.tables.Normal(1.0))
        model = Model(layers.EmbeddingBag(bags, "mean", padding_idx=2), layers.Embedding(rows, padding_idx=0))
        local = local_twin(bags(torch.arange(9)), rows(torch.arange(9)), "mean")
        compiled = torch.compile(model, backend="eager")
        twin = torch.optim.SGD([*local.bags.parameters(), *local.rows.parameters()], lr=0.1)
        for _ in range(2):
            with ps.context() as ctx:
                loss = compiled(IDS, OFFSETS, SINGLE.view(3))
                ctx.backward(loss, step=[bags.optimizer, rows.optimizer])
            twin.zero_grad()
            local(IDS, OFFSETS, SINGLE.view(3)).backward()
            twin.step()
        torch.testing.assert_close(bags(torch.arange(9)), local.bags.weight.detach())  # type: ignore[union-attr]
        torch.testing.assert_close(rows(torch.arange(9))[1:], local.rows.weight[1:].detach())  # type: ignore[index]


async def test_layers_run_in_threads_and_not_on_the_event_loop(ps: tc.Client) -> None:
    items = await ps.table("items", 3, rows=9)
    layer = layers.Embedding(items, padding_idx=-1)
    assert (layer.num_embeddings, layer.embedding_dim, layer.padding_idx) == (9, 3, 8)
    with pytest.raises(RuntimeError, match="use await"):
        layer(SINGLE)
    async with ps.context() as ctx:
        found = await asyncio.to_thread(layer, torch.tensor([[3, 8], [8, 4]]))
        assert found.shape == (2, 2, 3) and not found[0, 1].any() and found[1, 1].any()
        await ctx.backward(found.sum(), step=items.optimizer)
    assert await items.size() == 2


def test_what_is_no_table(ps: Any = None) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match="needs a table"):
        layers.Embedding(nn.Linear(2, 2))


async def test_last_offsets_and_modes(ps: tc.Client) -> None:
    items = await ps.table("items", 3)
    whole = layers.EmbeddingBag(items, "sum", include_last_offset=True)
    found = await asyncio.to_thread(whole, IDS, torch.tensor([0, 2, 4]))
    assert torch.equal(found, await items.bag(IDS[:4], torch.tensor([0, 2])))
    with pytest.raises(tc.errors.InvalidArgumentError, match="sum, mean, max, not 'median'"):
        layers.EmbeddingBag(items, "median")
