"""Tests the MPI parameter server with trainer processes: sync is exact, compression learns from few bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.mpi_ps.__main__ import difference, first_parameters, main
from examples.mpi_ps.data import batches, big_batches, digits
from examples.mpi_ps.model import Net, loss_of
from examples.mpi_ps.modes import MODES
from examples.mpi_ps.reference import train_here
from examples.mpi_ps.report import draw, table
from examples.mpi_ps.settings import Settings
from examples.mpi_ps.training import Run, train

SMALL = Settings(trainers=2, steps=20, lr=0.5)
COMPARED = ["sync", "sync, top 1 %", "sync, top 1 %, no feedback", "local SGD, every 10", "DiLoCo, every 10"]


def test_the_batches_of_the_trainers_are_those_of_one_process() -> None:
    for whole, *parts in zip(big_batches(SMALL), *(batches(SMALL, rank) for rank in range(2)), strict=True):
        assert whole.images.shape == (64, 64)
        assert [float(part.images.sum()) for part in parts] == [
            float(whole.images[:32].sum()),
            float(whole.images[32:].sum()),
        ]
    train_part, test_part = digits()
    assert len(train_part.labels) == 1437 and len(test_part.labels) == 360
    assert sum(each.numel() for each in Net().parameters()) == 301_066
    assert 2.2 < loss_of(Net(), test_part).item() < 2.4


@pytest.mark.usefixtures("forked_programs")
async def test_sync_is_exact_and_compression_with_feedback_learns_from_few_bytes(tmp_path: Path) -> None:
    runs: dict[str, Run] = {run.name: run async for run in train(SMALL, COMPARED)}
    whole, compressed, forgetful, averaged, diloco = (runs[name] for name in COMPARED)
    assert difference(whole.parameters, train_here(SMALL, first_parameters(SMALL))) <= 1e-6
    assert compressed.points[-1].sent < 0.03 * whole.points[-1].sent
    assert forgetful.points[-1].loss > 1.5 * compressed.points[-1].loss
    assert compressed.points[-1].loss < 0.5 * compressed.points[0].loss
    for local in (averaged, diloco):
        assert local.points[-1].sent < 0.11 * whole.points[-1].sent
        assert local.points[-1].loss < 0.8 * local.points[0].loss
    shown = table(list(runs.values()), SMALL)
    assert shown.row_count == 5
    draw(list(runs.values()), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_every_policy_and_reading_has_a_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert {(mode.policy, mode.reads) for mode in MODES.values() if mode.compress is None} == {
        ("sync", "consistent"),
        ("async", "consistent"),
        ("async", "inconsistent"),
        ("any", "consistent"),
        ("any", "inconsistent"),
    }
    assert main(["--modes", "sink"]) == 2
    assert "there is no mode 'sink'" in capsys.readouterr().out
