"""Tests that replicas train like DistributedDataParallel, and inside it."""

from __future__ import annotations

import asyncio
import copy
import sys
from pathlib import Path

import torch
from torch import distributed, nn, optim

import trainer_client as tc
from tests.conftest import ROOT
from tests.integration.ddp_reference import batch
from tests.integration.replica_models import Wide
from tests.integration.test_replicas import joined, learn, same


async def test_sync_of_two_replicas_equals_distributed_data_parallel(tmp_path: Path) -> None:
    async with joined(2) as (_, clients):
        opts, replicas = [], []
        for ps in clients:
            net = await ps.module(Wide, name="net", seed=1)
            opts.append(await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9, policy=tc.Sync(2)))
            replicas.append(await net.replica())
        state = tmp_path / "state"
        torch.save(replicas[0].module.state_dict(), state)
        run = (sys.executable, "-m", "tests.integration.ddp_reference")
        rest = (str(tmp_path / "store"), str(state))
        processes = [await asyncio.create_subprocess_exec(*run, str(rank), *rest, cwd=ROOT) for rank in range(2)]
        for step in range(4):
            for replica, part in zip(replicas, batch(step).chunk(2), strict=True):
                replica(part).square().mean().backward()
            await asyncio.gather(*(each.push(opt) for each, opt in zip(replicas, opts, strict=True)))
        assert [await each.wait() for each in processes] == [0, 0]
        expected = torch.load(f"{state}.trained", weights_only=True)
        for name, value in replicas[0].module.state_dict().items():
            torch.testing.assert_close(value, expected[name])


async def test_a_replica_inside_distributed_data_parallel(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        async with joined() as (_, (ps,)):
            net = await ps.module(Wide, name="net", seed=1)
            opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
            replica = await net.replica()
            local = copy.deepcopy(replica.module)
            local_opt = optim.SGD(local.parameters(), lr=0.1)
            parallel = nn.parallel.DistributedDataParallel(replica, gradient_as_bucket_view=True)
            for step in range(3):
                parallel(batch(step)).square().mean().backward()
                await replica.push(opt)
                learn(local, local_opt, batch(step))
                assert same(replica, local)
    finally:
        distributed.destroy_process_group()
