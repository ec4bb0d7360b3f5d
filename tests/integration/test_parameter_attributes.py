"""Tests that hosted code finds the attributes and classes of parameters, and can set attributes, as locally."""

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
async def test_attributes_are_found_and_kept(way: str) -> None:
    await beside_local("Marked", (way,), models=parameter_modules)


@pytest.mark.parametrize("way", ["module", "alias"])
async def test_attributes_that_could_not_be_kept_are_refused(way: str) -> None:
    async with training() as (_, ps):
        net = await ps.module(MARKED, way)
        for _ in range(2):
            with pytest.raises(tc.errors.InvalidArgumentError, match=r"has set attribute '(owner|kept)' of parameter"):
                await net(torch.ones(2, odd_modules.SIZE))


async def test_a_parameter_made_of_a_leaf_is_refused_with_advice() -> None:
    async with training() as (_, ps):
        net = await ps.module(MARKED, "parameter made")
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"nn\.Parameter\(weight\.detach\(\)\)"):
            await net(torch.ones(2, odd_modules.SIZE))
