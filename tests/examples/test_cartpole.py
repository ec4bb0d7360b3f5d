"""Tests CartPole with real observers that call the agent, and an agent that learns from them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import matplotlib.image
import pytest
import torch

from examples.cartpole import picture
from examples.cartpole.report import Report
from examples.cartpole.settings import Settings, parse
from examples.cartpole.trajectory import Trajectory
from tests.examples.output import assert_announced
from tests.forking.process import Forking
from tests.forking.programs import forked_programs
from tests.ports import ReservedPort

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240.0
"""Seconds for a run that takes a few on an idle machine."""

pytestmark = [pytest.mark.usefixtures("forked_programs"), pytest.mark.timeout(2 * PATIENCE)]
REPORT = Report(False, 475.0, 3, 2, 7, 60, 0.5, [[9.0, 10.0], [9.0, 12.0], [8.0, 12.0]], [0.45, 0.88, 1.23])


async def start(*arguments: str | Path) -> asyncio.subprocess.Process:
    """Starts the example as a process."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.cartpole", *map(str, arguments),
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


async def finish(*processes: asyncio.subprocess.Process) -> list[str]:
    """What the processes print, once all have ended well; none is left."""
    try:
        async with asyncio.timeout(PATIENCE):
            outputs = [(await process.communicate())[0].decode() for process in processes]
    finally:
        for process in processes:
            if process.returncode is None:
                # Not killed: it has to end what it has started, which holds the other end of its output.
                process.terminate()
                await process.communicate()
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, forking: Forking) -> tuple[Path, str]:
    """A run of 20 episodes: the directory of its files, and what it printed."""

    async def play(out: Path) -> str:
        (output,) = await finish(await start("--episodes", "20", "--out", out))
        return output

    out = tmp_path_factory.mktemp("out")
    with forked_programs(forking):
        return out, asyncio.run(play(out))


def test_observers_play_and_the_agent_learns(played: tuple[Path, str]) -> None:
    out, output = played
    assert "Episode 20\tLast reward: " in output
    assert_announced(output, until="This will run")
    assert os.listdir(out) == ["short"], "a short run leaves the files of a full one alone"
    report = Report.read(out / "short" / "cartpole.json")
    assert (report.solved, report.episodes, report.observers, report.threshold) == (False, 20, 2, 475.0)
    assert [len(rewards) for rewards in report.rewards] == [2] * 20
    # Observers have environments of their own.
    assert [first for first, _ in report.rewards] != [second for _, second in report.rewards]
    assert report.steps == sum(map(sum, report.rewards))
    running = 0.0
    for rewards, told in zip(report.rewards, report.running, strict=True):
        running = 0.05 * min(rewards) + 0.95 * running
        assert told == pytest.approx(running)
    assert sum(map(sum, report.rewards[-7:])) > 2 * sum(map(sum, report.rewards[:7]))
    assert (out / "short" / "cartpole.png").read_bytes().startswith(b"\x89PNG")


async def test_members_started_by_hand_do_the_same(played: tuple[Path, str], tmp_path: Path) -> None:
    with ReservedPort() as port:
        common = ["--world-size", "3", "--master-addr", "127.0.0.1", "--master-port", str(port.number)]
        members = [
            await start("--rank", str(rank), *common, "--episodes", "3", "--out", tmp_path) for rank in (2, 1, 0)
        ]
        *observers, agent = await finish(*members)
    assert "3 episodes of 2 observers" in agent
    assert not any("episodes" in output for output in observers)
    by_hand, together = (Report.read(out / "short" / "cartpole.json") for out in (tmp_path, played[0]))
    assert by_hand.rewards == together.rewards[:3]


def test_rewards_count_less_the_later_they_come() -> None:
    trajectory = Trajectory(rewards=[1.0, 2.0, 4.0])
    assert trajectory.total == 7
    assert trajectory.returns(0.5, cut_short=False).tolist() == [3.0, 4.0, 4.0]


def test_an_episode_that_was_cut_short_would_have_gone_on() -> None:
    trajectory = Trajectory(rewards=[1.0] * 500)
    assert torch.allclose(trajectory.returns(0.99, cut_short=True), torch.full((500,), 100.0, dtype=torch.float64))


def test_the_report_comes_back_as_it_was(tmp_path: Path) -> None:
    REPORT.write(tmp_path / "cartpole.json")
    assert Report.read(tmp_path / "cartpole.json") == REPORT


def test_the_picture_is_a_png_of_the_promised_size(tmp_path: Path) -> None:
    picture.draw(tmp_path / "cartpole.png", REPORT)
    assert matplotlib.image.imread(tmp_path / "cartpole.png").shape[:2] == (975, 1800)


def test_the_command_line_has_the_documented_defaults() -> None:
    assert parse([]) == Settings()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--observers", "0"], "at least 1"),
        (["--gamma", "1"], "less than 1"),
        (["--rank", "1"], "--master-port"),
        (["--rank", "2", "--world-size", "2", "--master-port", "1"], "ranks go from 0"),
    ],
)
def test_the_command_line_refuses_nonsense(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert reason in capsys.readouterr().err
