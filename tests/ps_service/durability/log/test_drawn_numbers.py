"""A log never has what a request has changed without the random numbers that it has drawn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ps_service.durability.log.effects import EffectsLog, RequestEffects
from ps_service.durability.log.mode import Mode
from ps_service.engine import Engine
from ps_wire.v1 import checkpoint_pb2 as pb


class Records:
    """A log that runs a function before it takes its first record."""

    def __init__(self) -> None:
        self.taken: list[pb.LogRecord] = []
        self.before_first: Callable[[], object] = lambda: None

    def append(self, message: bytes, chunks: Any) -> int:
        before, self.before_first = self.before_first, lambda: None
        before()
        self.taken.append(pb.LogRecord.FromString(message))
        return len(self.taken)


@pytest.fixture
def records() -> Records:
    return Records()


@pytest.fixture
def log(records: Records) -> EffectsLog:
    return EffectsLog(Engine("ps0"), records, Mode(0.0), lambda: 0)  # type: ignore[arg-type]


def generator() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def changing(log: EffectsLog, text: bytes) -> RequestEffects:
    effects = log.begin()
    effects._record.effects.add().session_began = text
    return effects


@pytest.mark.parametrize("draws", [False, True])
def test_no_record_comes_before_one_with_older_random_numbers(records: Records, log: EffectsLog, draws: bool) -> None:
    first, second = changing(log, b"first"), changing(log, b"second")
    another = threading.Thread(target=second.note)
    torch.rand(3)

    def meanwhile() -> None:
        if draws:
            torch.rand(3)
        another.start()
        another.join(0.2)

    records.before_first = meanwhile
    first.note()
    another.join()
    known = b""
    for each in records.taken:
        known = each.generator or known
        assert known
    assert known == generator()
    assert [each.effects[0].session_began for each in records.taken] == [b"first", b"second"]
    assert bool(records.taken[1].generator) == draws
