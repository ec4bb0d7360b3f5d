"""Tests of modules in snapshots whose code changes what it is called on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

import trainer_client as tc
from tests import snapshot_models
from tests.integration.restarting import Owner

X = torch.linspace(-1, 1, 12).view(3, 4)


async def test_what_a_forward_changes_stays_out_of_the_snapshot(tmp_path: Path) -> None:
    async with Owner(tmp_path, modules=[snapshot_models]) as owner, tc.connect(owner.address) as ps:
        for name in ("Counting", "Writing", "Drawing"):
            net = await ps.module(f"tests.snapshot_models.{name}", name=name)
            pinned = await ps.snapshot(name, [net])
            state = await pinned[net].state_dict()
            results = await asyncio.gather(*(pinned[net].read(X) for _ in range(8)))
            assert all(torch.equal(each, results[0]) for each in results), name
            after = await pinned[net].state_dict()
            assert all(torch.equal(after[each], state[each]) for each in state), name


async def test_a_late_write_to_parameters_is_no_wrong_result(tmp_path: Path) -> None:
    async with Owner(tmp_path, modules=[snapshot_models]) as owner, tc.connect(owner.address) as ps:
        net = await ps.module("tests.snapshot_models.WritingLate", name="late")
        pinned = (await ps.snapshot("a", [net]))[net]
        x = torch.ones(4)
        before = await pinned.read(x)
        assert not torch.equal(await pinned.read(-x), before) and torch.equal(await pinned.read(x), before)
        other = (await ps.snapshot("b", [await ps.module("tests.snapshot_models.WritingLate", name="other")]))["other"]
        for _ in range(5):
            await other.read(x)
        for each in (-x, x):
            with pytest.raises(tc.errors.RemoteError, match="snapshot 'b' does not have it as it was any more"):
                await other.read(each)
        with pytest.raises(tc.errors.RemoteError, match="has to be made again"):
            await other.state_dict()


async def test_the_attribute_that_cannot_be_copied_is_named(tmp_path: Path) -> None:
    async with Owner(tmp_path, modules=[snapshot_models]) as owner, tc.connect(owner.address) as ps:
        net = await ps.module("tests.snapshot_models.Locking", name="net")
        with pytest.raises(
            tc.errors.InvalidArgumentError, match=r"snapshot: layers\.0\.guard cannot be copied: cannot pickle"
        ):
            await ps.snapshot("a", [net])
