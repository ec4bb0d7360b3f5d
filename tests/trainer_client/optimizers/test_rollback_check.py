"""Tests of how a trainer finds that an owner has gone back."""

from __future__ import annotations

import pytest

from ps_wire.v1.operations_pb2 import PartState
from trainer_client.optimizers.rollback_check import _find


@pytest.mark.parametrize(("second", "is_found"), [(4, True), (5, False), (6, False)])
async def test_an_owner_is_asked_again_because_others_may_have_stepped_between(second: int, is_found: bool) -> None:
    parts = {"ps0": PartState(version=9, number=9, known={"ps1": 5, "gone": 7}), "ps1": PartState(version=4, number=4)}
    asked = []

    async def again(owner: str) -> PartState:
        asked.append(owner)
        return PartState(version=second, number=second, known={"ps0": 10})

    found = await _find(parts, again, has_rounds=False)
    assert found == (("ps1", "ps0", 5, 4) if is_found else None) and asked == ["ps1"]


async def test_nobody_is_asked_again_if_no_owner_is_behind() -> None:
    async def again(owner: str) -> PartState:
        raise AssertionError

    assert await _find({"ps0": PartState(known={"ps1": 4}), "ps1": PartState(number=4)}, again, True) is None
