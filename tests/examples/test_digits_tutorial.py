"""The tutorial's program: one parameter server and two trainers, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from examples.digits.data import load_small
from examples.digits.tutorial import get_parameter_server, loaders
from tests.ports import ReservedPort

ROOT = Path(__file__).resolve().parents[2]


def run(world_size: int) -> list[str]:
    """Runs the program in so many processes for one pass over the digits; gives what each printed."""
    command = [sys.executable, "-m", "examples.digits.tutorial", "--world-size", str(world_size), "--epochs", "1"]
    with ExitStack() as stack:
        port = str(stack.enter_context(ReservedPort()).number)
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, "--rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", port],
                    cwd=ROOT,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for rank in range(world_size)
        ]
        for process in processes:
            stack.callback(process.kill)
        printed = [process.communicate(timeout=60)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * world_size, "\n".join(printed)
    return printed


@pytest.mark.usefixtures("forked_programs")
def test_two_trainers_teach_one_server() -> None:
    server, *trainers = run(3)
    accuracies, first_losses, last_losses = [], [], []
    assert server.splitlines()[-1] == "RPC shutdown on parameter server."
    for rank, printed in enumerate(trainers, start=1):
        # 1438 digits, 719 for each trainer: 23 batches, of which each fifth is printed.
        found = re.findall(rf"Rank {rank} training batch (\d+) loss (\S+)", printed)
        assert [int(batch) for batch, _ in found] == [0, 5, 10, 15, 20]
        first_losses.append(float(found[0][1]))
        # The loss of one batch of 32 digits may be that of untrained nets again, with the steps of two trainers.
        last_losses.append(min(float(loss) for _, loss in found[-2:]))
        accuracy = re.search(r"^Accuracy (\S+)$", printed, re.MULTILINE)
        assert accuracy is not None
        accuracies.append(float(accuracy[1]))
    # Local torch that takes these steps alone is left with 0.79 to 0.93 of its first loss, by the seed. A trainer that
    # starts late goes on from the steps of the other, so its own first loss is low already.
    assert max(last_losses) < max(first_losses)
    assert min(last_losses) < 0.9 * max(first_losses)
    # A guess is correct in a tenth of the cases. The trainer that ends first measures a model that is not trained yet.
    assert 0.15 < max(accuracies) <= 1


def test_there_is_one_parameter_server() -> None:
    assert get_parameter_server() is get_parameter_server()


def test_trainers_have_digits_of_their_own() -> None:
    first, second = (torch.cat([labels for _, labels in loaders(rank, 2, epochs=1)[0]]) for rank in (1, 2))
    assert len(first) == len(second) == 719
    assert torch.equal(torch.cat([first, second]).bincount(), load_small().train.labels.bincount())
