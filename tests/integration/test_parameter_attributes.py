"""Tests that hosted code finds the attributes and classes of parameters, and can set attributes, as locally."""

from __future__ import annotations

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from tests import odd_modules, parameter_modules
from tests.integration.odd_training import beside_local, training

MARKED = "tests.parameter_modules.Marked"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "way",
    ["", "counted", "added", "set", "removed", "mean", "parameter of a copy", "copied", "module", "parameter made"],
    ids=lambda way: way or "read",
)
async def test_attributes_are_found_and_kept(unusual: tuple[Server, tc.Client], way: str) -> None:
    await beside_local("Marked", (way,), models=parameter_modules, ps=unusual[1])


async def test_an_attribute_in_the_memory_of_a_parameter_is_refused() -> None:
    async with training() as (_, ps):
        net = await ps.module(MARKED, "alias")
        for _ in range(2):
            with pytest.raises(tc.errors.InvalidArgumentError, match=r"has set attribute 'kept' of"):
                await net(torch.ones(2, odd_modules.SIZE))
