"""Tests of look-ups for later batches in programs of the blocking client."""

from __future__ import annotations

import time

import pytest
import torch

import trainer_client as tc
from tests.integration.tables.test_prefetching import BATCHES, COUNT
from trainer_client.errors import InvalidArgumentError


def test_the_blocking_client_looks_up_in_threads(owner_beside: str) -> None:
    with tc.connect(owner_beside) as ps:
        policy = tc.policies.Async(tc.policies.Reject(1000))
        items = ps.table("in threads", 1, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros(), policy=policy)
        number = 0
        for ids, looked_up in ps.prefetch(BATCHES, items, depth=1):
            lacking = min(number, 1)
            # Its thread makes the look-up of the next batch without waiting for this one.
            last = time.monotonic() + 60
            while items.size() < 1 + 2 * min(number + 2, COUNT):
                assert time.monotonic() < last
            with looked_up.context as ctx:
                rows = looked_up.wait()
                stepped = ctx.backward(-rows.sum(), step=items.optimizer)
            assert rows[0].item() == number - lacking and stepped.staleness == lacking
            assert torch.equal(ids, BATCHES[number])
            number += 1
        assert number == COUNT
        for ids, looked_up in ps.prefetch([*BATCHES[:2], torch.tensor([1.0])], lambda ids: ps.look_up({items: ids})):
            with looked_up.context:
                if ids.is_floating_point():
                    with pytest.raises(InvalidArgumentError):
                        looked_up.wait()
                else:
                    assert looked_up.wait()[items].shape == (3, 1)
        for _, looked_up in ps.prefetch(BATCHES, items):
            with looked_up.context:
                break
        last = time.monotonic() + 60
        while ps.status().contexts:
            assert time.monotonic() < last
