"""Tests trainers of a cluster: real processes, with two owners that are found through a directory."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
import torch

import trainer_client as tc
from examples.digits import Net, data
from examples.digits.cluster.layers import Layers, cut
from examples.digits.cluster.messages import Accuracy, Step
from examples.digits.cluster.network import Network
from examples.digits.cluster.settings import Settings, parse
from examples.digits.cluster.trainer import LONGEST_STREAK, Trainer
from examples.digits.data import Digits, Part
from tests.conftest import ROOT, OwnerProcess, StartProcess

IMPORT = ("--import", "examples.digits.cluster")

pytestmark = pytest.mark.usefixtures("forked_programs")


# The network and how it is dealt out


@pytest.mark.parametrize(
    ("owners", "parts"),
    [
        (1, [(0, 4)]),
        (2, [(0, 2), (2, 4)]),
        (3, [(0, 2), (2, 3), (3, 4)]),
        (4, [(0, 1), (1, 2), (2, 3), (3, 4)]),
    ],
)
def test_layers_are_dealt_out_in_order_and_evenly(owners: int, parts: list[tuple[int, int]]) -> None:
    assert cut(owners) == parts


@pytest.mark.parametrize("owners", [0, 5])
def test_there_is_no_owner_without_a_layer(owners: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 4 owners can share it, not {owners}"):
        cut(owners)


@pytest.mark.parametrize("owners", [1, 2, 3, 4])
def test_the_parts_together_are_the_network_of_the_example(owners: int) -> None:
    whole = Net().eval()
    parts = [Layers(first, end).eval() for first, end in cut(owners)]
    with torch.no_grad():
        for to, start in zip((each for part in parts for each in part.parameters()), whole.parameters(), strict=True):
            to.copy_(start)
    x = images = torch.rand(3, 1, 28, 28)
    for part in parts:
        x = part(x)
    torch.testing.assert_close(x, whole(images))


# What can be chosen


def test_flags_win_over_the_environment_and_that_over_the_defaults() -> None:
    environment = {
        "PS_TRAINER_STEPS": "20",
        "PS_TRAINER_OWNERS": "a, b",
        "PS_TRAINER_LR": "",
        "PS_TRAINER_PATIENCE": "1.5",
    }
    chosen = parse(["--steps", "30", "--seed", "7"], environment)
    assert chosen == Settings(steps=30, owners=("a", "b"), patience=1.5, seed=7)


def test_trainers_that_are_told_nothing_have_batches_of_their_own() -> None:
    assert parse([], {}).seed != parse([], {}).seed
    assert replace(parse([], {}), seed=0) == Settings()


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--steps", "0"], {}, "argument --steps: '0' is not a whole number from 1"),
        ([], {"PS_TRAINER_STEPS": "many"}, "argument --steps: 'many' is not a whole number from 1"),
        ([], {"PS_TRAINER_PATIENCE": "-1"}, "argument --patience: '-1' is not a number of seconds"),
        (["--owners", ","], {}, "argument --owners: at least one owner is needed"),
        (["--owners", "a,b,a"], {}, "argument --owners: an owner is named twice in 'a,b,a'"),
        (["--owners", "a,b,c,d,e"], {}, "1 to 4 owners can share it, not 5"),
    ],
)
def test_invalid_settings_are_explained(
    arguments: list[str], environment: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments, environment)
    assert message in capsys.readouterr().err


# What a trainer says


def test_lines_with_a_prefix_can_be_read_again() -> None:
    step = Step(12, 0.25, {"ps0": 33, "ps1": 34})
    assert str(step) == "step 12 loss 0.2500 versions ps0=33 ps1=34"
    assert Step.read(f"trainer_1  | {step}\n") == step
    assert Accuracy.read(f"trainer_1  | {Accuracy(0.98765)}\n") == Accuracy(0.9877)
    for line in ("", "step 12", "has taken 3 steps; of 5 steps all trainers have taken ps0=5", "accuracy high"):
        assert Step.read(line) is None and Accuracy.read(line) is None


# Trainers that are processes


class Process:
    """A trainer and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def read_until(self, so: Callable[[str], object]) -> None:
        """Reads on until something is so of a line."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            self.lines.append(line)
            if so(line):
                return
        pytest.fail(f"the trainer ended too early; it said:\n{''.join(self.lines)}")

    async def ended(self) -> tuple[int, list[str]]:
        """Its exit code, and everything it has said."""
        assert self.process.stdout is not None
        self.lines += (await self.process.stdout.read()).decode().splitlines(keepends=True)
        return await self.process.wait(), self.lines


StartTrainer = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start_trainer() -> AsyncIterator[StartTrainer]:
    """Starts trainers: `await start_trainer("--steps", "20")`; kills what is left of them."""
    started: list[Process] = []

    async def start(*flags: str) -> Process:
        command = [sys.executable, "-m", "examples.digits.cluster", "--batch-size", "8", "--log-every", "1", *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        started.append(Process(process))
        return started[-1]

    yield start
    for each in started:
        if each.process.returncode is None:
            each.process.kill()
        await each.process.wait()


async def test_trainers_come_and_go_and_every_step_is_told_to_one_of_them(
    start_process: StartProcess, start_trainer: StartTrainer, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = await start_process("--name", "directory", "--directory", "self")
    flags = ("--directory", directory.address, "--steps", "60")
    # They are started before there is an owner, and wait for it.
    trainers = [await start_trainer(*flags) for _ in range(3)]
    owners: list[OwnerProcess] = await asyncio.gather(
        *(start_process("--name", name, "--directory", directory.address, *IMPORT) for name in ("ps0", "ps1"))
    )
    leaves = trainers[-1]
    await leaves.read_until(Step.read)
    leaves.process.send_signal(signal.SIGTERM)
    ended = [await trainer.ended() for trainer in trainers]

    assert [code for code, _ in ended] == [0, 0, 0], ended
    steps = [[step for line in lines if (step := Step.read(line))] for _, lines in ended]
    assert all(steps), "each trainer has contributed"
    for owner in ("ps0", "ps1"):
        told = sorted(step.versions[owner] for taken in steps for step in taken)
        assert told == list(range(1, len(told) + 1)), f"{owner} has told each version once, and left none out"
        assert 60 <= len(told) <= 62, "no trainer begins a pass when there are enough steps"
    assert f"stopped by a signal after {len(steps[2])} steps; goodbye\n" == ended[2][1][-1]
    accuracies = [[found for line in lines if (found := Accuracy.read(line))] for _, lines in ended]
    assert [len(found) for found in accuracies] == [1, 1, 0]

    # A late trainer finds the network trained.
    await Trainer(parse(list(flags), {}), data.load()).run()
    said = capsys.readouterr().out
    assert "has taken 0 steps" in said and Accuracy.read(said.splitlines()[-1])
    async with tc.connect(*(owner.address for owner in owners)) as ps:
        for status in await asyncio.gather(ps.status("ps0"), ps.status("ps1")):
            assert (status.sessions, status.contexts) == (2, 0), "only the owner's own and this one: all said goodbye"


async def test_without_a_directory_it_says_so_and_fails(start_trainer: StartTrainer) -> None:
    trainer = await start_trainer("--directory", "127.0.0.1:1", "--patience", "0.2")
    code, lines = await trainer.ended()
    assert code == 1
    assert lines[-1].startswith("trainer: no owner could be reached at 127.0.0.1:1 for 0.2 s")


# What happens to a pass


@pytest.fixture(scope="module")
def few() -> Digits:
    """Some digits, with which a step is quickly taken."""
    digits = data.load_small()
    return Digits(digits.train[:64], digits.held_out[:16], digits.name, digits.epochs)


@pytest.fixture
async def settings(start_process: StartProcess) -> Settings:
    """Those of a trainer whose network lies on one owner, which keeps the directory as well."""
    owner = await start_process("--name", "ps0", "--directory", "self", *IMPORT)
    return Settings(directory=owner.address, owners=("ps0",), steps=3, batch_size=4, log_every=1)


class Accidents:
    """Lets the passes of a trainer fail as it was planned, before they are sent anywhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *plan: tc.PsError | None) -> None:
        self.batches: list[Part] = []
        self.networks: list[Network] = []
        errors = iter(plan)
        learn = Network.learn

        async def learn_or_fail(network: Network, batch: Part) -> tuple[float, dict[str, int]]:
            self.batches.append(batch)
            self.networks.append(network)
            if (error := next(errors, None)) is not None:
                raise error
            return await learn(network, batch)

        monkeypatch.setattr(Network, "learn", learn_or_fail)


async def test_a_pass_that_was_lost_is_run_again_with_the_same_digits(
    settings: Settings, few: Digits, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    happened = Accidents(
        monkeypatch,
        None,
        tc.errors.ContextLostError("gone"),
        tc.errors.ContextLostError("again"),
        tc.errors.SessionLostError("forgotten"),
    )
    await Trainer(settings, few).run()
    first, *same, last = happened.batches
    assert len(same) == 4 and all(batch is same[0] for batch in same)
    assert first is not same[0] is not last
    assert happened.networks[0] is happened.networks[3] is not happened.networks[4], "it has attached again"
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "again" in line] == [
        "the pass is run again: gone",
        "the pass is run again: again",
        "attaches again: forgotten",
    ]
    assert [step.versions for line in said if (step := Step.read(line))] == [{"ps0": 1}, {"ps0": 2}, {"ps0": 3}]


async def test_a_pass_that_is_always_lost_ends_the_trainer(
    settings: Settings, few: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    Accidents(monkeypatch, *(tc.errors.ContextLostError("gone") for _ in range(2 * LONGEST_STREAK)))
    with pytest.raises(tc.errors.ContextLostError, match=f"{LONGEST_STREAK} times in a row"):
        await Trainer(settings, few).run()


async def test_a_pass_that_does_not_end_is_given_up_when_the_trainer_is_stopped(
    settings: Settings, few: Digits, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(replace(settings, grace=0.05), few)

    async def learn_for_ever(network: Network, batch: Part) -> tuple[float, dict[str, int]]:
        trainer.stop()
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Network, "learn", learn_for_ever)
    await trainer.run()
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "the pass did not end within 0.05 s; it is given up",
        "stopped by a signal after 0 steps; goodbye",
    ]


async def test_a_trainer_that_waits_for_an_owner_can_be_stopped(
    settings: Settings, few: Digits, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(replace(settings, owners=("unknown",)), few)
    running = asyncio.create_task(trainer.run())
    async with tc.connect(settings.directory) as ps, asyncio.timeout(50):
        while (await ps.status()).sessions < 3:  # the owner's own, this one, and the trainer's
            pass
    trainer.stop()
    await running
    assert capsys.readouterr().out == "stopped by a signal after 0 steps; goodbye\n"
