"""Tests of the optimizers of rows: against torch's own, one for each row, which steps when the row has a gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.optim import SGD as TorchSGD
from torch.optim import Adagrad as TorchAdagrad
from torch.optim import AdamW, Optimizer

from ps_service.tables.shard import TableShard
from ps_wire.tables.options import (
    FTRL,
    SGD,
    Adagrad,
    LazyAdam,
    Normal,
    PartialRowWiseAdam,
    RowGroup,
    RowOptimizer,
    RowWiseAdagrad,
)
from tests.ps_service.tables.conftest import MakeShard, train

DIM, IDS, STEPS = 5, 12, 15

Reference = Callable[[torch.nn.Parameter], Optimizer]


class RowWise(Optimizer):
    """Row-wise Adagrad, partial row-wise Adam and FTRL of one row, as the formulas stand in their sources."""

    def __init__(self, parameter: torch.nn.Parameter, options: RowOptimizer) -> None:
        super().__init__([parameter], {"lr": options.lr})
        self._options = options
        self._numbers = {
            "sum": torch.tensor(0.0),
            "moment": torch.zeros(DIM),
            "z": torch.zeros(DIM),
            "n": torch.zeros(DIM),
        }
        self._steps = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        (w,) = group["params"]
        g, s, options, lr = w.grad, self._numbers, self._options, group["lr"]
        self._steps += 1
        if isinstance(options, RowWiseAdagrad):
            s["sum"] = s["sum"] + g.square().mean()
            w -= lr * options.weight_decay * w
            w -= lr * g / (s["sum"].sqrt() + options.eps)
        elif isinstance(options, PartialRowWiseAdam):
            first, second = options.betas
            s["moment"] = first * s["moment"] + (1 - first) * g
            s["sum"] = second * s["sum"] + (1 - second) * g.square().mean()
            w -= lr * options.weight_decay * w
            root = (s["sum"] / (1 - second**self._steps)).sqrt() + options.eps
            w -= lr * s["moment"] / (1 - first**self._steps) / root
        elif isinstance(options, FTRL):
            for i in range(DIM):
                sigma = ((s["n"][i] + g[i] ** 2).sqrt() - s["n"][i].sqrt()) / lr
                s["z"][i] += g[i] - sigma * w[i]
                s["n"][i] += g[i] ** 2
                z = float(s["z"][i])
                sign = 1.0 if z > 0 else -1.0
                w[i] = (
                    0.0
                    if abs(z) <= options.l1
                    else -(z - sign * options.l1) / ((options.beta + s["n"][i].sqrt()) / lr + options.l2)
                )


CASES: list[tuple[RowOptimizer, Reference]] = [
    (SGD(0.1), lambda p: TorchSGD([p], lr=0.1)),
    (SGD(0.1, momentum=0.9), lambda p: TorchSGD([p], lr=0.1, momentum=0.9)),
    (Adagrad(0.1, initial_accumulator=0.1), lambda p: TorchAdagrad([p], lr=0.1, initial_accumulator_value=0.1)),
    (LazyAdam(0.1), lambda p: AdamW([p], lr=0.1, weight_decay=0.0)),
    (LazyAdam(0.1, (0.8, 0.9), 1e-3, 0.2), lambda p: AdamW([p], lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2)),
    *(
        (options, partial(RowWise, options=options))
        for options in (
            *(RowWiseAdagrad(0.1), RowWiseAdagrad(0.1, weight_decay=0.3), PartialRowWiseAdam(0.1, weight_decay=0.1)),
            *(FTRL(0.3), FTRL(0.3, beta=0.5, l1=0.4, l2=0.1)),
        )
    ),
]


@pytest.mark.parametrize(("options", "reference"), CASES, ids=lambda each: getattr(each, "kind", ""))
def test_touched_rows_are_stepped_as_rows_of_their_own(
    options: RowOptimizer, reference: Reference, make_shard: MakeShard
) -> None:
    torch.manual_seed(0)
    shard = make_shard(DIM, options, Normal(0.5))
    every = torch.arange(IDS) * 7 - 30
    start = shard.look_up(every)
    parameters = [torch.nn.Parameter(row.clone()) for row in start]
    optimizers = [reference(each) for each in parameters]
    for step in range(STEPS):
        chosen = torch.randint(0, IDS - 1, (6,))  # some twice; the last row never
        gradients = torch.randn(6, DIM)
        if step == 8:
            shard.set_options(lr=0.02)
            for each in optimizers:
                each.param_groups[0]["lr"] = 0.02
        train(shard, every[chosen], gradients)
        for i in chosen.unique().tolist():
            parameters[i].grad = gradients[chosen == i].sum(0)
            optimizers[i].step()
    expected = torch.stack([each.detach() for each in parameters])
    torch.testing.assert_close(shard.look_up(every), expected)
    assert torch.equal(shard.look_up(every)[-1], start[-1])
    assert not torch.equal(shard.look_up(every)[:-1], start[:-1])


def test_decoupled_decay_of_plain_gradient_descent(make_shard: MakeShard) -> None:
    shard = make_shard(3, SGD(0.1, weight_decay=0.5), Normal(1.0))
    ids = torch.tensor([4])
    before = shard.look_up(ids)
    train(shard, ids, torch.ones(1, 3))
    torch.testing.assert_close(shard.look_up(ids), before * (1 - 0.05) - 0.1)


def test_groups_of_rows_have_rates_of_their_own(make_shard: MakeShard) -> None:
    groups = [RowGroup(10, 19, lr=1.0), RowGroup(-5, -1, weight_decay=0.5)]
    shard = make_shard(2, SGD(0.1), Normal(1.0), groups=groups)
    ids = torch.tensor([-6, -5, -1, 0, 9, 10, 19, 20])
    before = shard.look_up(ids)
    train(shard, ids, torch.ones(8, 2))
    lr = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1, 1.0, 1.0, 0.1])[:, None]
    decay = torch.tensor([0, 0.5, 0.5, 0, 0, 0, 0, 0])[:, None]
    torch.testing.assert_close(shard.look_up(ids), before * (1 - lr * decay) - lr)


def test_another_learning_rate_of_the_table_scales_those_of_groups(make_shard: MakeShard) -> None:
    groups = [RowGroup(10, 19, lr=0.5), RowGroup(30, 39)]
    shard = make_shard(2, SGD(0.1), Normal(1.0), groups=groups)
    ids, factors = torch.tensor([0, 10, 30]), torch.tensor([1.0, 5.0, 1.0])[:, None]
    before = shard.look_up(ids)
    for lr in (0.01, 0.2, 0.0):
        shard.set_options(lr=lr)
        train(shard, ids, torch.ones(3, 2))
        before = before - lr * factors
        torch.testing.assert_close(shard.look_up(ids), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_updates_of_rows_in_16_bits_are_not_lost_on_average(dtype: torch.dtype, make_shard: MakeShard) -> None:
    shard = make_shard(64, SGD(1.0), Normal(1.0), dtype)
    ids = torch.arange(64)
    shard.load([{**next(iter(_filled(shard, ids))), "values": torch.ones(64, 64, dtype=dtype)}])
    for _ in range(50):
        train(shard, ids, torch.full((64, 64), 1e-4))  # nearest rounding would leave 1.0 as it is
    mean = shard.look_up(ids).double().mean().item()
    assert mean == pytest.approx(1 - 50e-4, abs=4e-4)


def _filled(shard: TableShard, ids: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    shard.look_up(ids)
    return list(shard.blocks())
