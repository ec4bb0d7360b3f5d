"""Tests that hosted modules may store the identities of their parts."""

from __future__ import annotations

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from tests import restructuring_modules
from tests.integration.odd_training import beside_local, training
from tests.restructuring_modules import SIZE

MODELS = "tests.restructuring_modules"
WAYS = ["names", "id", "ids", "global table", "table", "set"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("way", "when"), [(way, ("early", "late")[n % 2]) for n, way in enumerate(WAYS)])
async def test_modules_that_store_their_identities_train_as_they_do_locally(
    unusual: tuple[Server, tc.Client], way: str, when: str
) -> None:
    args = (way, "") if when == "early" else ("", way)
    await beside_local("Remembering", args, 5, models=restructuring_modules, ps=unusual[1])


async def test_a_method_that_is_cached_finds_its_results_again() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Caching")
        first = await net(torch.ones(2, SIZE))
        for _ in range(4):
            assert torch.equal(await net(torch.ones(2, SIZE)), first)
