"""What trainers would have reported in an hour, put into the curves of an owner."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ps_service.engine import Engine
from ps_service.measures.curves import Curves, OptimizerCurves

STEPS = 36_000
"""Those of an hour, with ten each second."""


class Ticking:
    """A clock that goes on by a tenth of a second with each look."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


def of(curves: Curves, name: str, class_name: str = "torch.optim.SGD") -> OptimizerCurves:
    """The curves of an optimizer of that name, which need not be there."""
    return OptimizerCurves(curves, threading.Lock(), name, class_name)


@contextmanager
def an_hour_ago(engine: Engine) -> Iterator[None]:
    """A block in which the clock of the curves is a tenth of a second further with each round."""
    before = engine.curves.clock
    engine.curves.clock = Ticking(before() - STEPS / 10)
    yield
    engine.curves.clock = before


def train(engine: Engine, name: str, pace: float, steps: int = STEPS) -> OptimizerCurves:
    """An hour of losses that fall, with noise, and of accuracies, one for each hundred steps."""
    found, draws = of(engine.curves, name), random.Random(name)
    with an_hour_ago(engine):
        for version in range(1, steps + 1):
            loss = 0.12 + 2.3 * math.exp(-pace * version / steps) * math.exp(draws.gauss(0, 0.15))
            values = {"loss": loss}
            if version % 100 == 0:
                values["accuracy"] = 0.98 - 0.9 * math.exp(-pace * version / steps) + draws.gauss(0, 0.01)
            found.add(version, values)
    return found
