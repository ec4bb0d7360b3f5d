"""Tests `ps-service run` with real processes: what trainers find, what failures lead to, and that nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from examples.digits.cluster.messages import Accuracy
from tests.conftest import ROOT
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("forked_programs")

WAITS = "import os, signal; print('process', os.getpid(), flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {WAITS}"
DIES_ONCE = """
import os, pathlib, signal
mark = pathlib.Path("mark")
if os.environ["RANK"] == "1" and not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
print("finished")
"""
ONE_FAILS = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    while not os.path.exists("process"):
        time.sleep(0.01)
    print("such is life", file=sys.stderr)
    sys.exit(7)
print("process", os.getpid(), flush=True)
open("process", "w").close()
signal.pause()
"""


class Run:
    """A `ps-service run`, and what it has written."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def read_until(self, pattern: str) -> re.Match[str]:
        """Reads on until a pattern is found in a line."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            self.lines.append(line.rstrip("\n"))
            if found := re.search(pattern, line):
                return found
        pytest.fail(f"it ended before it said {pattern!r}; it said:\n" + "\n".join(self.lines))

    async def ended(self) -> int:
        """Reads the rest, and returns its exit status."""
        async with asyncio.timeout(240):
            assert self.process.stdout is not None
            self.lines += (await self.process.stdout.read()).decode().splitlines()
            return await self.process.wait()


Start = Callable[..., Awaitable[Run]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts `ps-service run` in a folder with `train.py`: `await start("--owners", "2", program="print()")`."""
    runs: list[Run] = []

    async def start(*arguments: str, program: str = "") -> Run:
        flags = ["--no-compile-tables"]
        if program:
            (tmp_path / "train.py").write_text(program)
            arguments = (*arguments, "train.py")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ps_service", "run", *flags, *arguments),
            cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        runs.append(Run(process))
        return runs[-1]

    yield start
    for each in runs:
        if each.process.returncode is None:
            each.process.kill()
        await each.process.wait()


def is_there(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def kill_owner_at(address: str) -> None:
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if address in each.cmdline():
                each.kill()
                return
    pytest.fail(f"no owner at {address}")


async def test_trainers_find_all_owners_without_an_address(start: Start) -> None:
    module = ("-m", "tests.ps_service.launch.found_owners", "--owners", "9", "-m")
    run = await start("--owners", "2", "--trainers", "2", *module)
    assert await run.ended() == 0, run.lines
    served = dict(re.findall(r"^\[ps\d\] (ps\d) is serving on (\S+)$", "\n".join(run.lines), re.MULTILINE))
    assert served.keys() == {"ps0", "ps1"}
    for rank in ("0", "1"):
        said = [line.removeprefix(f"[trainer {rank}] ") for line in run.lines if line.startswith(f"[trainer {rank}] ")]
        found = json.loads(min(said, key=lambda line: not line.startswith("{")))
        assert found == {
            "PS_ADDRESS": f"{served['ps0']},{served['ps1']}",
            "PS_DIRECTORY": served["ps0"],
            "RANK": rank,
            "WORLD_SIZE": "2",
            "LOCAL_RANK": rank,
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "arguments": ["--owners", "9", "-m"],
            "owners": ["ps0", "ps1"],
        }
        assert "a line of standard error" in said
    assert all(re.match(r"\[(ps\d|trainer \d)\] ", line) for line in run.lines), run.lines


async def test_the_digits_are_learned_with_two_owners_and_two_trainers(start: Start) -> None:
    program = ("-m", "examples.digits.cluster", "--steps", "60", "--batch-size", "8", "--seed", "0")
    run = await start("--owners", "2", "--trainers", "2", "--import", "examples.digits.cluster", *program)
    assert await run.ended() == 0, run.lines
    accuracies = [found.share for line in run.lines if (found := Accuracy.read(line))]
    # A guess is correct in a tenth of the cases. How far so few steps come depends on their order.
    assert len(accuracies) == 2 and min(accuracies) > 0.15


async def test_a_trainer_that_is_killed_comes_back_and_finishes(start: Start) -> None:
    run = await start("--trainers", "2", "--restarts", "1", program=DIES_ONCE)
    assert await run.ended() == 0, run.lines
    assert "ps-service: trainer 1 was ended by SIGKILL; it is started again (1 of 1)" in run.lines
    assert sorted(line for line in run.lines if line.endswith("finished")) == [
        "[trainer 0] finished", "[trainer 1] finished",
    ]  # fmt: skip


async def test_an_owner_with_a_data_directory_comes_back_at_its_address(start: Start, tmp_path: Path) -> None:
    program = "import os, time\nprint('begins', flush=True)\nwhile not os.path.exists('end'): time.sleep(0.01)"
    run = await start("--data-dir", "kept", "--restarts", "2", program=program)
    address = (await run.read_until(r"\[ps0\] ps0 is serving on (\S+)"))[1]
    await run.read_until(r"\[trainer 0\] begins")
    kill_owner_at(address)
    await run.read_until(r"^ps-service: ps0 was ended by SIGKILL; it is started again \(1 of 2\)")
    assert (await run.read_until(r"\[ps0\] ps0 is serving on (\S+)"))[1] == address
    (tmp_path / "end").touch()
    assert await run.ended() == 0, run.lines
    assert list((tmp_path / "kept").iterdir()) == [tmp_path / "kept" / "ps0"]


async def test_the_exit_status_is_that_of_the_first_failure(start: Start) -> None:
    run = await start("--trainers", "2", program=ONE_FAILS)
    assert await run.ended() == 7, run.lines
    assert "[trainer 1] such is life" in run.lines
    assert "ps-service: trainer 1 ended with status 7; the others are ended" in run.lines
    (other,) = re.findall(r"\[trainer 0\] process (\d+)", "\n".join(run.lines))
    assert not is_there(other)


async def test_an_owner_that_ends_is_a_failure(start: Start) -> None:
    run = await start("--restarts", "1", program=WAITS)
    address = (await run.read_until(r"\[ps0\] ps0 is serving on (\S+)"))[1]
    trainer = (await run.read_until(r"\[trainer 0\] process (\d+)"))[1]
    kill_owner_at(address)
    assert await run.ended() == 137
    assert "ps-service: ps0 was ended by SIGKILL; the others are ended" in run.lines
    assert not is_there(trainer)


async def test_an_owner_that_cannot_start_says_why(start: Start) -> None:
    run = await start("--owners", "2", "--import", "no_such_models", program=WAITS)
    assert await run.ended() == 2
    # The first one that fails is told of; the other is ended, maybe before it could say why, maybe just after.
    assert any(re.match(r"\[ps[01]\] ps-service: .*no_such_models", line) for line in run.lines), run.lines
    (said,) = [line for line in run.lines if line.startswith("ps-service: ")]
    assert re.fullmatch(r"ps-service: ps\d ended with status 2 before it served; the others are ended", said)
    assert not any(line.startswith("[trainer") for line in run.lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_trainers_and_drains_owners(start: Start, number: signal.Signals) -> None:
    run = await start("--owners", "2", "--data-dir", "kept", program=WAITS)
    trainer = (await run.read_until(r"\[trainer 0\] process (\d+)"))[1]
    run.process.send_signal(number)
    assert await run.ended() == 128 + number
    text = "\n".join(run.lines)
    assert f"ps-service: {number.name}: the trainers are ended, then the owners drain; once more kills all" in text
    assert ("KeyboardInterrupt" in text) == (number == signal.SIGINT)
    assert len(re.findall(r"\[ps\d\] .*the state of ps\d is kept in kept/ps\d", text)) == 2
    assert not is_there(trainer)


async def test_a_second_signal_kills_all(start: Start) -> None:
    run = await start("--grace", "3600", program=STUBBORN)
    trainer = (await run.read_until(r"\[trainer 0\] process (\d+)"))[1]
    run.process.send_signal(signal.SIGINT)
    await run.read_until("SIGINT: the trainers are ended")
    run.process.send_signal(signal.SIGINT)
    assert await run.ended() == 130
    assert "ps-service: SIGINT again: all are killed" in run.lines
    assert not is_there(trainer)


async def test_a_signal_ends_all_while_nobody_reads(start: Start) -> None:
    run = await start("--trainers", "1", program="import os\nwhile True: print('process', os.getpid(), 'x' * 1000)")
    process = (await run.read_until(r"process (\d+)"))[1]
    run.process.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        assert await run.process.wait() == 130
    assert not is_there(process)


async def test_a_signal_ends_all_after_the_output_was_closed(start: Start) -> None:
    run = await start("--trainers", "1", program=WAITS)
    process = (await run.read_until(r"process (\d+)"))[1]
    output = run.process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
    output.close()
    run.process.send_signal(signal.SIGINT)
    async with asyncio.timeout(60):
        # By the signal, or if it has written something since, because nobody reads it.
        assert await run.process.wait() in (130, 128 + signal.SIGPIPE)
    assert not is_there(process)


async def test_an_owner_is_there_whatever_its_modules_print(start: Start, tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import sys\nfrom ps_service import remote\nsys.stdout.write('loading ... ')\n@remote\ndef f(): ...\n"
    )
    run = await start("--import", "noisy", program="print('finished')")
    assert await run.ended() == 0
    assert "[trainer 0] finished" in run.lines


async def test_a_trainer_that_does_not_end_is_killed_after_the_grace(start: Start) -> None:
    run = await start("--grace", "0.05", program=STUBBORN)
    await run.read_until(r"\[trainer 0\] process")
    run.process.send_signal(signal.SIGINT)
    assert await run.ended() == 130
    assert "ps-service: trainer 0 has not ended within 0.05 s, and is killed" in run.lines


async def test_nothing_outlives_a_command_that_is_killed(start: Start) -> None:
    run = await start(program=WAITS)
    trainer = (await run.read_until(r"\[trainer 0\] process (\d+)"))[1]
    run.process.kill()
    await run.ended()  # which waits for the end of all that have its output
    await until(lambda: not is_there(trainer))
