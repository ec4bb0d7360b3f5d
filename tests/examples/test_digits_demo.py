"""Runs the whole example with real processes: an owner and two trainers; all of them end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from examples.digits import data, idx
from examples.digits.data import Part
from examples.digits.report import ChaosReport, Report
from tests.examples.output import assert_announced
from tests.examples.test_digits_data import idx_file

ROOT = Path(__file__).resolve().parents[2]


class Demo:
    """A running example and what it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def read_until(self, text: str) -> None:
        """Reads on until a line contains the text."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(line.decode())
            if text in self.lines[-1]:
                return
        pytest.fail(f"the example ended before it said {text!r}; it said:\n{self.output}")

    async def finish(self) -> int:
        """Reads the rest and returns the exit code."""
        assert self.process.stdout is not None
        self.lines += (await self.process.stdout.read()).decode().splitlines(keepends=True)
        return await self.process.wait()

    @property
    def output(self) -> str:
        """Everything read so far."""
        return "".join(self.lines)

    @property
    def pids(self) -> list[int]:
        """The processes it has started."""
        return [int(pid) for pid in re.findall(r"starts \(process (\d+)\)", self.output)]


class Starter:
    """Starts examples and ends those that a failing test leaves running."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._demos: list[Demo] = []

    async def __call__(self, *arguments: str) -> Demo:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "examples.digits", "--out", str(self._out), *arguments,
            cwd=ROOT,
            env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        self._demos.append(Demo(process))
        return self._demos[-1]

    async def end(self) -> None:
        """Ends what still runs."""
        for demo in self._demos:
            if demo.process.returncode is None:
                # Not terminate(), which polls and so can take the exit code away from the loop's own watcher.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(demo.process.pid, signal.SIGTERM)
            await demo.process.wait()


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with 400 digits to train on and 100 held out."""
    return written(tmp_path_factory.mktemp("few"), 400)


def written(folder: Path, count: int) -> Path:
    """Writes so many digits to train on, and 100 held out."""
    digits = data.load_small()
    write_idx(folder, "train", digits.train[:count])
    write_idx(folder, "t10k", digits.held_out[:100])
    return folder


def write_idx(folder: Path, prefix: str, part: Part) -> None:
    """Writes digits as the files of MNIST."""
    images = part.images.squeeze(1) - part.images.min()
    pixels = (255 * images / images.max()).numpy().astype(np.uint8)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx_file(pixels, idx.IMAGES_MAGIC))
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_file(part.labels.numpy(), idx.LABELS_MAGIC))


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    """Starts the example with its own output directory."""
    starter = Starter(tmp_path)
    yield starter
    await starter.end()


def assert_gone(pid: int) -> None:
    """Fails when the process is there, even as a zombie."""
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("form", [(), ("--sync",)], ids=["async", "blocking"])
async def test_trains_evaluates_and_cleans_up(start: Starter, few: Path, tmp_path: Path, form: tuple[str, ...]) -> None:
    demo = await start("--data", str(few), "--epochs", "1", "--batch-size", "5", "--lr", "0.02", *form)
    assert await demo.finish() == 0, demo.output
    assert_announced(demo.output, until="ps0 starts")
    assert os.listdir(tmp_path) == ["short"], "a short run leaves the files of a full one alone"
    out = tmp_path / "short"
    report = Report.read(out / "demo.json")
    assert report.trainers == 2
    # 200 digits for each trainer.
    assert [len(losses) for losses in report.loss] == [40, 40]
    assert report.steps == 80
    assert report.steps_per_second == pytest.approx(report.steps / report.seconds)
    # A guess is correct in a tenth of the cases. How far so few steps come depends on their order.
    assert 0.15 < report.accuracy <= 1
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert f"{report.accuracy:.4f}" in demo.output
    assert str(out / "demo.png") in demo.output
    assert len(demo.pids) == 3
    for pid in demo.pids:
        assert_gone(pid)


@pytest.mark.usefixtures("forked_programs")
async def test_no_step_is_lost_when_the_owner_is_killed(
    start: Starter, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    fewer = str(written(tmp_path_factory.mktemp("fewer"), 200))
    demo = await start("--data", fewer, "--batch-size", "5", "--lr", "0.03", "--chaos", "0.1", "--kills", "2")
    assert await demo.finish() == 0, demo.output
    report = ChaosReport.read(tmp_path / "chaos.json")
    # Each trainer that trains at that time pauses. A busy machine may not have begun by the first.
    assert len(report.kills) == 2 and len(report.pauses) <= 4
    assert [len(each) for each in report.loss] == [len(each) for each in report.times] == [40, 40]
    assert report.version == report.steps == 80, "each acknowledged step is applied, and once"
    assert report.repeated <= 4
    for (at, back), (following, _) in pairwise([*report.kills, [report.seconds, 0.0]]):
        assert 0 < at < back < following
    assert 0.25 < report.accuracy <= 1
    assert (tmp_path / "chaos.png").read_bytes().startswith(b"\x89PNG")
    assert f"a pass is run again {report.repeated}" in re.sub(" +", " ", demo.output)
    assert sorted(os.listdir(tmp_path)) == ["chaos.json", "chaos.png", "ps0.log", "trainer-0.log", "trainer-1.log"]
    assert len(demo.pids) == 5
    for pid in demo.pids:
        assert_gone(pid)


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
async def test_a_signal_in_the_middle_leaves_nothing(start: Starter, few: Path, number: signal.Signals) -> None:
    demo = await start("--data", str(few), "--epochs", "1000")
    await demo.read_until("trainer 1 is connected")
    demo.process.send_signal(number)
    assert await demo.finish() == 130, demo.output
    assert len(demo.pids) == 3
    for pid in demo.pids:
        assert_gone(pid)


@pytest.mark.usefixtures("forked_programs")
async def test_ctrl_c_while_the_owner_starts_leaves_nothing(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The example is forked, but what it starts itself never gets as far as serving.
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o700)
    monkeypatch.setenv("FORKING_LAUNCHER", str(slow))
    demo = await start()
    await demo.read_until("ps0 starts")
    demo.process.send_signal(signal.SIGINT)
    assert await demo.finish() == 130, demo.output
    assert "serving" not in demo.output
    (pid,) = demo.pids
    assert_gone(pid)


@pytest.mark.usefixtures("forked_programs")
async def test_a_trainer_that_dies_ends_the_run_with_a_reason(start: Starter, few: Path) -> None:
    demo = await start("--data", str(few), "--epochs", "1000")
    await demo.read_until("trainer 1 is connected")
    os.kill(demo.pids[1], signal.SIGKILL)
    assert await demo.finish() == 1
    assert "trainer-0 ended with code -9" in demo.output
    for pid in demo.pids:
        assert_gone(pid)


@pytest.mark.usefixtures("forked_programs")
async def test_an_owner_that_cannot_start_says_why(start: Starter) -> None:
    demo = await start("--device", "nowhere")
    assert await demo.finish() == 1
    assert "ps0 ended with code" in demo.output
    assert "ps0.log" in demo.output
    assert_gone(demo.pids[0])


@pytest.mark.usefixtures("forked_programs")
async def test_missing_files_are_named_before_anything_starts(start: Starter, tmp_path: Path) -> None:
    demo = await start("--data", str(tmp_path / "nothing"))
    assert await demo.finish() == 1
    assert "no train-images-idx3-ubyte" in demo.output
    assert not demo.pids
