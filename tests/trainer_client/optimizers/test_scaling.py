"""Tests that torch's GradScaler works with a distributed optimizer."""

from __future__ import annotations

import pytest
import torch

from ps_wire.refs import ContextId
from trainer_client.optimizers.results import Unscaled
from trainer_client.optimizers.scaling import Scaled, Work
from trainer_client.session.stepped import Stepped


class Parts:
    """Stands for the parts of an optimizer: notes what is asked of them."""

    def __init__(self, present: bool = True, non_finite: bool = False) -> None:
        self.factors: list[float] = []
        self.steps = 0
        self._found = Unscaled(present, non_finite)

    def work(self, number: int = 1, scale: float = 8.0) -> Work:
        return Work(ContextId(bytes(16), number), scale, self._unscale, self._step)

    def _unscale(self, factor: float) -> Unscaled:
        self.factors.append(factor)
        return self._found

    def _step(self) -> Stepped:
        self.steps += 1
        return Stepped({"ps0": self.steps})


def scaler() -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    return scaler


def test_a_step_unscales_first() -> None:
    parts = Parts()
    assert Scaled().step_unless_infinite(parts.work(), scaler()) == {"ps0": 1}
    assert parts.factors == [0.125]


def test_a_step_is_left_out_when_a_gradient_is_not_finite() -> None:
    parts, torchs = Parts(non_finite=True), scaler()
    assert Scaled().step_unless_infinite(parts.work(), torchs) is None
    assert parts.steps == 0
    torchs.update()
    assert torchs.get_scale() == 4.0


def test_gradients_are_unscaled_once() -> None:
    parts, scaled, torchs = Parts(), Scaled(), scaler()
    scaled.unscale(parts.work(), torchs)
    assert scaled.step_unless_infinite(parts.work(), torchs) == {"ps0": 1}
    assert parts.factors == [0.125]


def test_unscaling_twice_is_torchs_error() -> None:
    parts, scaled, torchs = Parts(), Scaled(), scaler()
    scaled.unscale(parts.work(), torchs)
    with pytest.raises(RuntimeError, match="already been called"):
        scaled.unscale(parts.work(), torchs)


def test_another_pass_than_the_one_that_was_unscaled_is_refused() -> None:
    parts, scaled, torchs = Parts(), Scaled(), scaler()
    scaled.unscale(parts.work(1), torchs)
    with pytest.raises(RuntimeError, match="another pass"):
        scaled.step_unless_infinite(parts.work(2), torchs)
    assert parts.steps == 0


def test_a_pass_without_gradients_is_torchs_error() -> None:
    with pytest.raises(AssertionError, match="No inf checks"):
        Scaled().step_unless_infinite(Parts(present=False).work(), scaler())
