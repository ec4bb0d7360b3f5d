"""Attributes and classes of parameters: hosted code finds them, and what it sets stays, as it does locally."""

from __future__ import annotations

import pytest
import torch

import trainer_client as tc
from tests import odd_modules, parameter_modules
from tests.integration.odd_training import beside_local, training

MARKED = "tests.parameter_modules.Marked"


@pytest.mark.parametrize(
    "way",
    ["", "counted", "added", "set", "removed", "mean", "parameter of a copy", "copied"],
    ids=lambda way: way or "read",
)
async def test_they_are_there_and_stay(way: str) -> None:
    await beside_local("Marked", (way,), models=parameter_modules)


@pytest.mark.parametrize("way", ["module", "alias"])
async def test_those_that_could_not_stay_are_refused(way: str) -> None:
    async with training() as (_, ps):
        net = await ps.module(MARKED, way)
        for _ in range(2):
            with pytest.raises(tc.InvalidArgumentError, match=r"has set attribute '(owner|kept)' of parameter"):
                await net(torch.ones(2, odd_modules.SIZE))


async def test_a_parameter_made_of_a_leaf_is_refused_with_advice() -> None:
    async with training() as (_, ps):
        net = await ps.module(MARKED, "parameter made")
        with pytest.raises(tc.InvalidArgumentError, match=r"nn\.Parameter\(weight\.detach\(\)\)"):
            await net(torch.ones(2, odd_modules.SIZE))
