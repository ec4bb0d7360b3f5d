"""Tests what is written for TensorBoard."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from trainer_client.reporting.progress import StepNumbers


class Writer:
    """Remembers what is written, in the place of `SummaryWriter`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.scalars: list[tuple[str, float, int]] = []
        self.closed = False

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def close(self) -> None:
        self.closed = True


def numbers(step: int, staleness: int | None = 1, **values: Any) -> StepNumbers:
    return StepNumbers(step, 4.0, staleness, 0, values)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]  # as in the real one
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)


@pytest.mark.usefixtures("installed")
def test_every_number_is_a_scalar_of_its_step(tmp_path: Path) -> None:
    with tc.TensorBoard(tmp_path) as board:
        board(numbers(1, loss=torch.tensor(0.5)))
        board(numbers(2, None))
        assert not board.writer.closed
    assert board.writer.closed and board.writer.folder == str(tmp_path)
    assert board.writer.scalars == [
        ("parameter_server/steps_per_second", 4.0, 1),
        ("parameter_server/dropped", 0, 1),
        ("parameter_server/staleness", 1, 1),
        ("loss", 0.5, 1),
        ("parameter_server/steps_per_second", 4.0, 2),
        ("parameter_server/dropped", 0, 2),
    ]


@pytest.mark.usefixtures("installed")
def test_only_every_so_many_steps_are_written(tmp_path: Path) -> None:
    board = tc.TensorBoard(tmp_path, every=10)
    for step in range(1, 31):
        board(numbers(step, loss=1.0))
    assert [step for name, _, step in board.writer.scalars if name == "loss"] == [10, 20, 30]


def test_without_tensorboard_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match="pip install tensorboard"):
        tc.TensorBoard(tmp_path)


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tc.TensorBoard(tmp_path) as board:
        for step in (1, 2):
            board(numbers(step, loss=0.5 / step))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("loss")] == [(1, 0.5), (2, 0.25)]
    assert [each.value for each in events.Scalars("parameter_server/steps_per_second")] == [4.0, 4.0]
