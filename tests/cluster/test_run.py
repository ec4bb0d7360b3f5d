"""Trains the digits with `ps-service run`, on two owners and with two trainers, one of which is killed. It needs no
engine, and is here because it takes long."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import suppress

import psutil
import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.cluster

COMMAND = (
    *("-m", "ps_service", "run", "--owners", "2", "--trainers", "2", "--restarts", "1"),
    *("--import", "examples.digits.cluster", "-m", "examples.digits.cluster"),
)


def trainers(run: int) -> list[psutil.Process]:
    """The trainers of a run."""
    found = []
    for each in psutil.Process(run).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if each.cmdline()[-2:] == ["-m", "examples.digits.cluster"]:
                found.append(each)
    return found


async def test_a_trainer_that_is_killed_comes_back_and_the_network_is_trained() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *COMMAND,
        cwd=ROOT,
        env=os.environ | {"PS_TRAINER_STEPS": "480", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    output, killed = "", 0
    try:
        async with asyncio.timeout(300):
            async for line in process.stdout:
                output += line.decode()
                if not killed and " step 25 " in output:
                    there = trainers(process.pid)
                    killed = there[1].pid
                    there[1].kill()
            assert await process.wait() == 0, output
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    accuracies = [float(each) for each in re.findall(r"\] accuracy ([\d.]+)", output)]
    assert killed and len(accuracies) == 2 and min(accuracies) > 0.9, output
    assert len(set(re.findall(r"trainer (\w+) \(examples\.digits\.cluster, .* has connected", output))) == 3, output
