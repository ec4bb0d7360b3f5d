"""An owner that is killed starts again though its log speaks of objects that are in no record of it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import trainer_client as tc
from ps_service import hosted, remote
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import checkpoint
from tests.integration.support import bits


@hosted
class Stateless:
    """A plain object that cannot be kept."""

    @remote
    def here(self) -> bool:
        return True


def owner_in(folder: Path, **options: Any) -> Owner:
    return Owner(folder, modules=[sys.modules[__name__]], durability="always", **options)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with owner_in(tmp_path) as made:
        yield made


async def test_an_object_that_the_log_does_not_have_was_deleted(owner: Owner, ps: tc.Client) -> None:
    net = await ps.module(nn.Linear, 4, 2, name="net", seed=1)
    await ps.create(f"{__name__}.Stateless", name="plain")
    await ps.delete("plain")
    written = bits(await net.state_dict())
    await owner.crash()
    assert bits(await net.state_dict()) == written
    assert (await ps.create(f"{__name__}.Stateless", name="plain")).was_made


async def test_an_object_that_is_left_out_was_deleted(tmp_path: Path) -> None:
    async with owner_in(tmp_path) as owner, tc.connect(owner.address) as ps:
        await ps.module(nn.Linear, 4, 2, name="net")
        await checkpoint(owner)
        await ps.delete("net")
        await ps.module(nn.Linear, 2, 2, name="other")
    async with owner_in(tmp_path, leave_out=("net",)) as owner, tc.connect(owner.address) as ps:
        assert await ps.attach("other")
