"""Tests that one step with the gradients of all trainers equals a step of one process with a larger batch."""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import permutations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples.batched_updates.data import batches, big_batches
from examples.batched_updates.measurement import measure
from examples.batched_updates.model import gradients_of, loss_of, network
from examples.batched_updates.reference import train_here
from examples.batched_updates.server import BatchingServer, EagerServer
from examples.batched_updates.settings import Settings, parse

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("forked_programs")
SMALL = Settings(trainers=3, steps=20, batch_size=16, rounds=1)


def largest_difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Over all parameters, which must be the same ones."""
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def first_gradients(settings: Settings) -> list[dict[str, Tensor]]:
    """What each trainer brings to the first step."""
    model = network(settings.seed)
    return [gradients_of(model, *next(batches(settings, rank))) for rank in range(settings.trainers)]


def test_trainers_together_equal_one_process_with_a_larger_batch() -> None:
    batched, alone = measure(SMALL)
    assert (batched.way, alone.way) == ("batched", "one by one")
    assert (batched.updates, alone.updates) == (20, 60)
    expected = train_here(SMALL)
    assert largest_difference(batched.parameters, expected) <= 1e-6
    assert largest_difference(alone.parameters, expected) > 1e-3
    assert loss_of(alone.parameters) < loss_of(batched.parameters) < loss_of(network(SMALL.seed).state_dict()) - 0.05


async def test_the_command_measures_and_compares() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.batched_updates", "--trainers", "2", "--steps", "5", "--rounds", "1",
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
    assert "batched:    10 gradients, 5 updates, " in output
    assert "one by one: 10 gradients, 10 updates, " in output
    assert "from one process with batches of 64" in output


def test_the_last_to_come_steps_once_for_all() -> None:
    server = BatchingServer(SMALL)
    before = server.parameters()
    gradients = first_gradients(SMALL)
    first, second = (server.update(rank, gradients[rank]) for rank in (2, 0))
    assert not first.done() and not second.done()
    assert largest_difference(server.parameters(), before) == 0 and server.updates == 0
    third = server.update(1, gradients[1])
    assert server.updates == 1
    assert first.value() is second.value() is third.value()
    mean = torch.stack([each["0.weight"] for each in gradients]).mean(0)
    assert torch.allclose(third.value()["0.weight"], before["0.weight"] - SMALL.lr * mean, atol=1e-7)
    assert not server.update(0, gradients[0]).done()


def test_the_order_of_coming_does_not_matter() -> None:
    gradients = first_gradients(SMALL)
    results = []
    for order in permutations(range(SMALL.trainers)):
        server = BatchingServer(SMALL)
        results.append([server.update(rank, gradients[rank]) for rank in order][-1].value())
    assert all(largest_difference(results[0], other) == 0 for other in results[1:])


def test_a_trainer_counts_once_per_step() -> None:
    server = BatchingServer(SMALL)
    gradients = first_gradients(SMALL)[0]
    waiting = server.update(0, gradients)
    with pytest.raises(ValueError, match="trainer 0 has brought"):
        server.update(0, gradients)
    assert not waiting.done()


def test_a_step_that_fails_fails_for_all_and_the_next_one_can_be_made() -> None:
    server = BatchingServer(SMALL)
    gradients = first_gradients(SMALL)
    futures = [server.update(rank, {} if rank == 0 else gradients[rank]) for rank in range(SMALL.trainers)]
    for future in futures:
        with pytest.raises(KeyError):
            future.value()
    assert server.updates == 0
    assert [server.update(rank, gradients[rank]) for rank in range(SMALL.trainers)][-1].value()
    assert server.updates == 1


def test_answers_are_not_written_to_by_later_steps() -> None:
    server = EagerServer(SMALL)
    gradients = first_gradients(SMALL)
    answer = server.update(0, gradients[0])
    kept = {name: parameter.clone() for name, parameter in answer.items()}
    later = server.update(1, gradients[1])
    assert largest_difference(answer, kept) == 0
    assert largest_difference(later, kept) > 0


def test_the_trainers_share_out_the_big_batches() -> None:
    for whole, *parts in zip(
        big_batches(SMALL), *(batches(SMALL, rank) for rank in range(SMALL.trainers)), strict=True
    ):
        for all_of_it, shares in zip(whole, zip(*parts, strict=True), strict=True):
            assert len(all_of_it) == 48
            assert torch.equal(torch.cat(shares), all_of_it)


def test_the_command_line_has_the_documented_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([]) == Settings()
    with pytest.raises(SystemExit, match="2"):
        parse(["--trainers", "0"])
    assert "at least 1" in capsys.readouterr().err
