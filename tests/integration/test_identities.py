"""Tests that hosted modules must not store the identities of their parts, which differ in each call."""

from __future__ import annotations

import re

import pytest
import torch

import trainer_client as tc
from tests.integration.odd_training import training
from tests.restructuring_modules import SIZE

MODELS = "tests.restructuring_modules"
WAYS = {
    "names": "id()",
    "id": "id()",
    "ids": "id()",
    "global table": "WeakKeyDictionary",
    "table": "WeakKeyDictionary",
    "set": "WeakSet",
}


@pytest.mark.parametrize("way", WAYS)
async def test_an_identity_is_refused_when_the_module_is_made(way: str) -> None:
    async with training() as (_, ps):
        with pytest.raises(tc.errors.InvalidArgumentError, match=re.escape(WAYS[way])):
            await ps.module(f"{MODELS}.Remembering", way)
        assert await ps.module(f"{MODELS}.Remembering")


@pytest.mark.parametrize("recorded", [False, True], ids=["not recorded", "recorded"])
@pytest.mark.parametrize("way", WAYS)
async def test_an_identity_is_refused_when_a_call_stores_it(way: str, recorded: bool) -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Remembering", "", way)
        match = re.escape(WAYS[way])
        for _ in range(2):
            with pytest.raises(tc.errors.InvalidArgumentError, match=match):
                if not recorded:
                    await net(torch.ones(2, SIZE))
                async with ps.context():
                    await net(torch.ones(2, SIZE))


async def test_methods_that_are_cached_are_refused() -> None:
    async with training() as (_, ps):
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"Caching\.mask .* is cached by functools"):
            await ps.module(f"{MODELS}.Caching")
