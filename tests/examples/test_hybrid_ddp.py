"""Hybrid of DistributedDataParallel and a parameter server: the same numbers as in one process."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from examples.hybrid_ddp.comparison import differences
from examples.hybrid_ddp.data import CLASSES, EMBEDDINGS, batches
from examples.hybrid_ddp.job import train
from examples.hybrid_ddp.model import WIDTH, dense_layer
from examples.hybrid_ddp.reference import train_here
from examples.hybrid_ddp.settings import Settings, parse

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("forked_programs")


def test_a_hundred_steps_of_four_processes_equal_those_of_one() -> None:
    settings = Settings(steps=100)
    outcome = train(settings)
    expected, losses = train_here(outcome.table_before, settings)
    found = differences(outcome, expected)
    assert found.keys() == {
        "ps: table",
        *(f"trainer{rank}: {name}" for rank in (0, 1) for name in ("weight", "bias")),
    }
    assert max(found.values()) <= 1e-6, found
    assert outcome.losses == [pytest.approx(told, abs=1e-5) for told in losses]
    # All of it was trained.
    before = {"table": outcome.table_before, **dense_layer(settings.seed).state_dict()}
    assert all(value > 0.01 for value in differences(outcome, before).values())
    assert all(sum(told[-10:]) < sum(told[:10]) / 2 for told in outcome.losses)


async def test_the_command_says_how_far_they_are_apart() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.hybrid_ddp", "--steps", "3",
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            output = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output
    assert "largest difference from one process after 3 steps: " in output


def test_one_process_moves_the_layer_by_the_mean_and_the_table_by_the_sum() -> None:
    settings = Settings(steps=5)
    weight = torch.randn(EMBEDDINGS, WIDTH, generator=torch.Generator().manual_seed(1))
    table, layer = nn.EmbeddingBag.from_pretrained(weight.clone(), freeze=False, mode="sum"), dense_layer(settings.seed)
    groups = [{"params": table.parameters()}, {"params": layer.parameters(), "lr": settings.lr / 2}]
    optimizer = torch.optim.SGD(groups, lr=settings.lr)
    for step in zip(*(batches(settings.seed, rank, settings.steps) for rank in (0, 1)), strict=True):
        optimizer.zero_grad()
        for batch in step:
            nn.functional.cross_entropy(layer(table(batch.indices, batch.offsets)), batch.targets).backward()
        optimizer.step()
    expected, _ = train_here(weight, settings)
    for name, parameter in (("table", table.weight), *layer.named_parameters()):
        assert torch.allclose(parameter, expected[name], atol=1e-5), name


def test_batches_are_bags_of_one_class() -> None:
    for indices, offsets, targets in batches(seed=3, rank=0, steps=20):
        assert 20 <= len(indices) <= 50 and len(offsets) == len(targets)
        assert offsets[0] == 0 and bool((offsets.diff() > 0).all())
        bags = torch.tensor_split(indices, offsets[1:])
        assert [set((bag % CLASSES).tolist()) for bag in bags] == [{target} for target in targets.tolist()]
        assert int(indices.max()) < EMBEDDINGS


def test_every_trainer_has_batches_of_its_own() -> None:
    first, again, other, seeded = (
        [batch.indices.tolist() for batch in batches(seed, rank, 4)] for seed, rank in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert first == again
    assert first != other and first != seeded


def test_the_command_line_has_the_documented_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([]) == Settings()
    with pytest.raises(SystemExit, match="2"):
        parse(["--steps", "0"])
    assert "at least 1" in capsys.readouterr().err
