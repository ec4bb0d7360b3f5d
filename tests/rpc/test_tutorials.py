"""Tests that programs built like torch's tutorials compute what they compute in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.rpc import tutorials as t
from trainer_client import autograd, rpc
from trainer_client.optim import DistributedOptimizer

TOKENS, WIDTH, LR = 7, 3, 0.5


def copies(rrefs: list[rpc.RRef]) -> list[Tensor]:
    """The values of parameters, here and on members."""
    return [rref.to_here().detach().clone() for rref in rrefs]


def set_to(module: nn.Module, values: list[Tensor]) -> None:
    for parameter, value in zip(module.parameters(), values, strict=True):
        parameter.data.copy_(value)


def test_the_rnn_learns_as_in_one_process() -> None:
    model = t.RNN("worker1", TOKENS, WIDTH)
    rrefs = model.parameter_rrefs()
    assert [rref.owner_name() for rref in rrefs] == ["worker1", *4 * ["worker0"], *2 * ["worker1"]]
    table, lstm, decoder = local = nn.ModuleList(
        [t.Table(TOKENS, WIDTH), nn.LSTM(WIDTH, WIDTH), t.Decoder(TOKENS, WIDTH)]
    )
    set_to(local, copies(rrefs))
    distributed = DistributedOptimizer(torch.optim.SGD, rrefs, lr=LR)
    here = torch.optim.SGD(local.parameters(), lr=LR)
    for seed in range(3):
        tokens = torch.randint(TOKENS, (5, 2), generator=torch.Generator().manual_seed(seed))
        with autograd.context() as context_id:
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            autograd.backward(context_id, [loss])
            distributed.step(context_id)
        expected = F.cross_entropy(decoder(lstm(table(tokens))[0]).flatten(0, 1), tokens.flatten())
        assert torch.allclose(loss, expected)
        here.zero_grad()
        expected.backward()
        here.step()
    assert all(map(torch.allclose, copies(rrefs), local.parameters()))


@pytest.mark.parametrize("split_size", [8, 3])
def test_the_pipeline_learns_as_in_one_process(split_size: int) -> None:
    widths = [4, 6, 5, 3, 2]
    model = t.Pipeline(split_size, ["worker1", "worker2"], widths)
    rrefs = model.parameter_rrefs()
    assert [rref.owner_name() for rref in rrefs] == 4 * ["worker1"] + 4 * ["worker2"]
    local = nn.Sequential(t.Shard("cpu", *widths[:3]).seq, t.Shard("cpu", *widths[2:]).seq)
    set_to(local, copies(rrefs))
    distributed = DistributedOptimizer(torch.optim.SGD, rrefs, lr=LR)
    here = torch.optim.SGD(local.parameters(), lr=LR)
    for seed in range(3):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
        with autograd.context() as context_id:
            loss = model(x).square().mean()
            autograd.backward(context_id, [loss])
            distributed.step(context_id)
        expected = local(x).square().mean()
        assert torch.allclose(loss, expected)
        here.zero_grad()
        expected.backward()
        here.step()
    assert all(map(torch.allclose, copies(rrefs), local.parameters()))


@pytest.mark.parametrize("batch", [False, True])
def test_observers_call_back_the_agent(batch: bool) -> None:
    workers = ["worker1", "worker2", "worker3"]
    numbers = [rpc.get_worker_info(worker).id for worker in workers]
    agent = t.Agent(workers, batch)
    for episode in range(2):
        returned: list[Any] = agent.run_episode(4)
        for number, (rewards, steps) in zip(numbers, returned, strict=True):
            expected = [(sum(numbers) + 3 * step if batch else step) + number for step in range(4)]
            assert rewards.tolist() == expected and steps == 4
            assert agent.rewards[number] == (episode + 1) * expected
