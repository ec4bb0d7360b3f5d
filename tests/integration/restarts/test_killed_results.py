"""Results that stay and were written to later are as they were when an owner that was killed starts again."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service import RRef, remote
from tests.integration.restarting import Owner
from tests.integration.restarts.conftest import checkpoint
from trainer_client.handles.calls import call as method


@remote
def zeros() -> Any:
    return RRef(torch.zeros(3))


@remote
def nothing() -> Any:
    return RRef([0.0, {"tensor": torch.zeros(2)}])


@remote
def write(kept: Any) -> float:
    return float(kept.local_value().add_(1).sum())


@remote
def append(kept: Any) -> int:
    value = kept.local_value()
    value.append(1.0)
    value[1]["tensor"].add_(2)
    return len(value)


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    async with Owner(tmp_path, modules=[sys.modules[__name__]], durability="always") as made:
        yield made


def called(name: str) -> str:
    return f"{__name__}.{name}"


async def test_a_tensor_that_a_function_has_written_to(owner: Owner, ps: tc.Client) -> None:
    kept = await ps.call(called("zeros"))
    await ps.call(called("write"), kept)
    assert await ps.call(called("write"), kept) == 6.0
    await owner.crash()
    assert torch.equal(await kept.to_here(), torch.full((3,), 2.0))
    await ps.call(called("write"), kept)
    await checkpoint(owner)
    await ps.call(called("write"), kept)
    await owner.crash()
    assert torch.equal(await kept.to_here(), torch.full((3,), 4.0))


async def test_a_list_that_a_function_has_written_to(owner: Owner, ps: tc.Client) -> None:
    kept = await ps.call(called("nothing"))
    assert await ps.call(called("append"), kept) == 3
    await owner.crash()
    assert await ps.call(called("append"), kept) == 4
    await owner.crash()
    value = await kept.to_here()
    assert value[2:] == [1.0, 1.0]
    assert torch.equal(value[1]["tensor"], torch.full((2,), 4.0))


async def test_a_tensor_whose_method_has_written_to_it(owner: Owner, ps: tc.Client) -> None:
    kept = await ps.call(called("zeros"))
    await method(kept.session, kept, "add_", (3,), {})
    await owner.crash()
    assert torch.equal(await kept.to_here(), torch.full((3,), 3.0))
    await method(kept.session, kept, "mul_", (2,), {})
    await owner.crash()
    assert torch.equal(await kept.to_here(), torch.full((3,), 6.0))
