"""Tests that the pipeline equals one process, and that its two owners work concurrently."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from examples.pipeline.measure import Machine, deal
from examples.pipeline.members import together
from examples.pipeline.pipeline import MOMENTUM, Pipeline
from examples.pipeline.shards import Shard1, Shard2
from tests.examples import gated_shards
from tests.examples.gated_shards import Gate, GatedShard1, GatedShard2
from tests.examples.output import assert_announced
from tests.forking.process import Forking
from tests.forking.programs import forked_programs
from trainer_client import autograd, rpc
from trainer_client.nn import RemoteModule
from trainer_client.rpc.current import agent

ROOT = Path(__file__).resolve().parents[2]
WIDTH, LR, SIZE, PARTS = 4, 0.01, 16, 4
# Sums of some thousand float32 products in another order, by the number of threads: some multiples of their eps.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(scope="module", autouse=True)
def owners(forking: Forking) -> Iterator[tuple[str, ...]]:
    """A group of this process and two owners."""
    with forked_programs(forking), together(gated_shards) as names:
        yield names


@pytest.fixture(scope="module")
def dealt() -> list[tuple[Tensor, Tensor]]:
    """Three batches."""
    return list(islice(deal(SIZE, seed=0), 3))


def halves(one: type = Shard1, two: type = Shard2) -> tuple[RemoteModule, RemoteModule]:
    """Both halves, each on its owner."""
    return RemoteModule("shard1", one, (WIDTH, 0)), RemoteModule("shard2", two, (WIDTH, 1))


def fetched(owner: str) -> int:
    """How many values others have fetched from an owner so far."""
    operations = agent().client.status(owner).wait().operations
    return sum(operation.calls for operation in operations if operation.name == "fetch")


class Local:
    """The same network in this process, which learns whole batches."""

    def __init__(self) -> None:
        self.shards = {"shard1": Shard1(WIDTH, 0), "shard2": Shard2(WIDTH, 1)}
        self.parameters = {
            (owner, name): parameter
            for owner, shard in self.shards.items()
            for name, parameter in shard.named_parameters()
        }
        self.opt = torch.optim.SGD(self.parameters.values(), lr=LR, momentum=MOMENTUM)

    def backward(self, x: Tensor, y: Tensor) -> float:
        """Leaves gradients in `.grad`, and gives the loss."""
        self.opt.zero_grad()
        loss = F.nll_loss(self.shards["shard2"](self.shards["shard1"](x)), y)
        loss.backward()
        return loss.item()


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_gradients_are_those_of_one_process(dealt: list[tuple[Tensor, Tensor]], in_flight: int) -> None:
    pipeline, local = Pipeline(*halves(), LR), Local()
    x, y = dealt[0]
    expected = local.backward(x, y)
    with autograd.context() as context_id:
        assert pipeline.backward(context_id, x, y, PARTS, in_flight) == pytest.approx(expected, abs=1e-6)
        found = autograd.context_of(context_id).get_gradients().wait()
    gradients = {(handle.owner, handle.name): gradient for handle, gradient in found.items()}
    assert gradients.keys() == local.parameters.keys()
    for key, parameter in local.parameters.items():
        assert parameter.grad is not None and parameter.grad.abs().max() > 1e-5
        torch.testing.assert_close(gradients[key], parameter.grad, **CLOSE)


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_training_is_that_of_one_process(dealt: list[tuple[Tensor, Tensor]], in_flight: int) -> None:
    shards, local = halves(), Local()
    pipeline = Pipeline(*shards, LR)
    for x, y in dealt:
        expected = local.backward(x, y)
        local.opt.step()
        assert pipeline.step(x, y, PARTS, in_flight) == pytest.approx(expected, abs=1e-6)
    found = [rref.to_here() for shard in shards for rref in shard.remote_parameters()]
    for parameter, expected_parameter in zip(found, local.parameters.values(), strict=True):
        torch.testing.assert_close(parameter, expected_parameter.data, **CLOSE)


def test_both_owners_are_at_work_at_once(dealt: list[tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    # The second half waits in each micro-batch but the last until the first half is in the next one.
    gate = Gate(meetings=PARTS - 1)
    monkeypatch.setattr(gated_shards, "gate", gate)
    pipeline, local = Pipeline(*halves(GatedShard1, GatedShard2), LR), Local()
    x, y = dealt[0]
    assert pipeline.step(x, y, PARTS, in_flight=2) == pytest.approx(local.backward(x, y), abs=1e-6)
    assert gate.met == PARTS - 1
    assert gate.most == 2


def test_one_in_flight_is_one_at_a_time(dealt: list[tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    monkeypatch.setattr(gated_shards, "gate", gate)
    pipeline = Pipeline(*halves(GatedShard1, GatedShard2), LR)
    pipeline.step(*dealt[0], PARTS, in_flight=1)
    assert gate.most == 1


def test_activations_go_from_owner_to_owner(
    dealt: list[tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("the trainer fetched what it should only refer to")

    pipeline = Pipeline(*halves(), LR)
    monkeypatch.setattr(rpc.RRef, "to_here", refuse)
    before = fetched("shard1")
    pipeline.step(*dealt[0], PARTS, in_flight=2)
    # So it was the second half that fetched them.
    assert fetched("shard1") == before + PARTS


def test_the_bound_is_that_of_the_machine() -> None:
    assert Machine([20.0], [10.0]).bound(8) == pytest.approx(16 / 9)
    assert Machine([20.0], [20.0]).bound(8) == pytest.approx(1.0)
    assert Machine([20.0, 22.0, 900.0], [20.0, 20.0, 20.0]).bound(8) == pytest.approx(8 / (1 + 7 / 1.1))


def test_the_whole_example_writes_its_figures(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.pipeline", "--out", str(tmp_path), "--rounds", "2", "--width", "2"]
    command += ["--batch-size", "8", "--micro-batches", "4", "--in-flight", "1", "3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_announced(done.stdout, until="in flight")
    assert os.listdir(tmp_path) == ["short"], "a short run leaves the files of a full one alone"
    found = json.loads((tmp_path / "short" / "pipeline.json").read_text())
    measures, machine = found["measures"], found["machine"]
    assert len(machine["apart_ms"]) == len(machine["at_once_ms"]) == 2
    assert f"can gain {machine['bound']:.2f} x at most (two idle cores: 1.60 x)" in done.stdout
    assert done.stderr.splitlines()[-1] == "rounds, with one to warm up: 3/3"
    assert [each["in_flight"] for each in measures] == [1, 3]
    for each in measures:
        assert len(each["all"]["step_ms"]) == len(each["all"]["losses"]) == 2
        assert each["step_ratio"] == pytest.approx(measures[0]["step_ms"] / each["step_ms"])
        assert f"{each['step_ms']:.1f} ms" in done.stdout
