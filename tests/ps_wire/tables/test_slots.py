"""Tests of the mix of ids and of slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ps_wire.tables.hashing import GOLDEN, mix, mix_one
from ps_wire.tables.routing import SLOTS, slots_of


def test_the_mix_gives_the_published_numbers_of_splitmix64() -> None:
    # The first numbers for the seed 1234567, as in the reference implementation of S. Vigna.
    assert [mix_one(1234567, GOLDEN * i) for i in (1, 2, 3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_slots_are_the_highest_bits_of_the_mix() -> None:
    drawn = torch.randint(-(2**63), 2**63 - 1, (10_000,), generator=torch.Generator().manual_seed(1))
    ids = torch.cat([torch.tensor([0, -1, 2**63 - 1, -(2**63), 12345]), drawn])
    assert slots_of(ids).tolist() == [int(each) >> 50 for each in mix(ids.numpy())]


@pytest.mark.parametrize("ids", [torch.arange(1 << 20), torch.arange(1 << 20) * 4096, -torch.arange(1 << 20)])
def test_ids_in_a_row_are_spread_evenly(ids: torch.Tensor) -> None:
    counts = np.bincount(slots_of(ids).numpy(), minlength=SLOTS)
    assert len(counts) == SLOTS
    # 64 ids for each slot on average. The sum of squared deviations follows a chi-squared distribution.
    squared = ((counts - 64) ** 2 / 64).sum()
    assert abs(squared - SLOTS) < 6 * (2 * SLOTS) ** 0.5


def test_slots_keep_the_shape_and_leave_the_ids_as_they_are() -> None:
    ids = torch.arange(6).view(2, 3).t()
    before = ids.clone()
    assert torch.equal(slots_of(ids), slots_of(ids.reshape(-1)).view(3, 2))
    assert torch.equal(ids, before)
