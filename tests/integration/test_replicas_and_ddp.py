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
from tests.integration.ddp_reference import CASES, STEPS, batch
from tests.integration.replica_models import Wide
from tests.integration.test_replicas import joined, learn, same


async def test_sync_of_two_replicas_equals_distributed_data_parallel(tmp_path: Path, forked_programs: None) -> None:
    async with joined(2) as (_, clients):
        trained = {}
        for name, case in CASES.items():
            opts, replicas = [], []
            for ps in clients:
                net = await ps.module(case.model, name=name, seed=1)
                opts.append(await ps.optimizer(optim.SGD, net.parameters(), policy=tc.policies.Sync(2), **case.options))
                replicas.append(await net.replica())
            torch.save(replicas[0].module.state_dict(), tmp_path / name)
            for step in range(STEPS):
                for replica, part in zip(replicas, batch(step, case.columns).chunk(2), strict=True):
                    case.loss(replica(part), part).backward()
                await asyncio.gather(*(each.push(opt) for each, opt in zip(replicas, opts, strict=True)))
            assert same(*replicas)
            trained[name] = replicas[0].module.state_dict()
    run = (sys.executable, "-m", "tests.integration.ddp_reference")
    rest = (str(tmp_path / "store"), str(tmp_path))
    processes = [await asyncio.create_subprocess_exec(*run, str(rank), *rest, cwd=ROOT) for rank in range(2)]
    assert [await each.wait() for each in processes] == [0, 0]
    for name, state in trained.items():
        expected = torch.load(tmp_path / f"{name}.trained", weights_only=True)
        before = torch.load(tmp_path / name, weights_only=True)
        for key, value in state.items():
            torch.testing.assert_close(value, expected[key])
            assert not torch.equal(value, before[key])


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
