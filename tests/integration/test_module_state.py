"""What modules keep beside their parameters: calls that change it take turns, and what they return stays as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

import trainer_client as tc
from tests import odd_modules
from tests.integration.odd_training import MODELS, training
from tests.training import apart, hosted_value

SIZE = odd_modules.SIZE
ONE = torch.ones(())


@pytest.mark.parametrize("recorded", [False, True], ids=["not recorded", "recorded"])
@pytest.mark.parametrize("way", ["attribute", "list", "closure", "buffer"])
async def test_calls_at_once_count_one_after_the_other(way: str, recorded: bool) -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Totals", way)

        async def call() -> torch.Tensor:
            if not recorded:
                return await net(ONE)
            async with ps.context():
                return await net(ONE)

        found = await asyncio.gather(*(apart(call()) for _ in range(16)))
        assert all(bool((total == total[0]).all()) for total in found), "none is torn"
        assert sorted(int(total[0]) for total in found) == list(range(1, 17))


@pytest.mark.parametrize("way", ["attribute", "list", "closure", "buffer"])
async def test_a_returned_tensor_is_not_written_to(way: str) -> None:
    async with training() as (server, ps):
        net = await ps.module(f"{MODELS}.Totals", way)
        kept = [await net.remote("forward", ONE), await net.remote("view")]
        await net(ONE)
        first, view = [await each.to_here() for each in kept]
        assert first.unique().tolist() == view["total"][0].unique().tolist() == [1.0]
        memory = hosted_value(server, net)._tensor().untyped_storage().data_ptr()
        assert hosted_value(server, kept[0]).untyped_storage().data_ptr() != memory


async def test_a_stored_tensor_is_not_shared_with_the_answer() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Remembering")
        kept = await net.remote("forward", torch.ones(3))
        await net(torch.ones(3))
        assert (await kept.to_here()).tolist() == [2.0, 2.0, 2.0]


async def test_no_update_of_running_statistics_is_lost() -> None:
    calls, rows = 60, torch.randn(60, 64, SIZE)
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Normed")
        local = odd_modules.Normed()
        local.load_state_dict(await net.state_dict())
        await asyncio.gather(*(apart(_forward(ps, net, x)) for x in rows))
        for x in rows:
            local(x)
        state = await net.state_dict()
        assert state["body.1.num_batches_tracked"] == state["body.2.num_batches_tracked"] == calls
        # With a cumulative average the order makes no difference.
        for name in ("running_mean", "running_var"):
            torch.testing.assert_close(state[f"body.1.{name}"], local.get_buffer(f"body.1.{name}"))


async def _forward(ps: tc.Client, net: Any, x: torch.Tensor) -> None:
    async with ps.context():
        await net(x)


async def test_evaluation_sees_mean_and_variance_of_one_moment() -> None:
    async with training() as (_, ps):
        layer = await ps.module("torch.nn.BatchNorm1d", 20_000, momentum=1.0, affine=False, name="norm")
        reader = (await ps.attach("norm")).eval()
        # Mean and (unbiased) variance are both m after a batch of this form.
        batches = [
            torch.stack([torch.full((20_000,), m - (m / 2) ** 0.5), torch.full((20_000,), m + (m / 2) ** 0.5)])
            for m in (1.0, 9.0)
        ]
        await layer(batches[0])
        probe = torch.zeros(1, 20_000)
        expected = [float((0 - m) / (m + 1e-5) ** 0.5) for m in (1.0, 9.0)]

        async def write() -> None:
            for number in range(40):
                await layer(batches[number % 2])

        async def read() -> None:
            for _ in range(40):
                seen = (await reader(probe)).unique()
                assert seen.max() - seen.min() < 1e-3
                assert min(abs(float(seen[0]) - each) for each in expected) < 1e-3

        await asyncio.gather(apart(write()), apart(read()))


async def test_statistics_that_are_reset_in_evaluation_mode_are_reset() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Normed")
        await net(torch.randn(8, SIZE))
        net.eval()
        await net.reset()
        state = await net.state_dict()
        assert state["body.1.num_batches_tracked"] == 0
        assert state["body.1.running_mean"].tolist() == [0.0] * SIZE
        assert state["body.2.num_batches_tracked"] == 1
