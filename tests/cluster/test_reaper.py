"""What a cluster leaves behind when its process is killed: with a stand-in for the engine, and with a real one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import engine
from tests.cluster.reaper import ROOT, left
from tests.cluster.waiting import wait_for

DOCKER = """#!/bin/bash
case "$2 $1" in
  "ls image") echo image-id ;;
  "ls "*) echo $1-id ;;
  *) echo "$*" >> "$SAID" ;;
esac
"""

PROGRAM = """
import sys
from tests.cluster.reaper import Reaper

with Reaper("project", "image:latest"):
    print("ready", flush=True)
    sys.stdin.read()
"""

REMOVED = ["container rm --force --volumes container-id", "network rm network-id", "volume rm --force volume-id"]
"""What the reaper asks the stand-in for, besides the image."""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the stand-in was asked to do."""
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    return tmp_path / "said"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_everything_is_removed_however_a_process_ends(said: Path, end: signal.Signals | None) -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert not said.exists()
        if end is not None:
            process.send_signal(end)
    wait_for("the reaper", lambda: (said.exists() and len(said.read_text().splitlines()) == 4) or None, 60)
    assert said.read_text().splitlines() == [*REMOVED, "image rm --force image:latest"]


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_killed_process_leaves_no_container_behind() -> None:
    engine.check()
    program = """
import sys
from tests.cluster.project import Project

project = Project()
print(project.name, flush=True)
with project:
    project.build()
    project.up()
    print("up", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert process.stdout.readline() == "up\n"
        assert left(name, "container") and left(name, "network") and left(name, "volume")
        process.kill()
    for kind in ("container", "network", "volume"):
        wait_for(f"the end of each {kind}", lambda kind=kind: not left(name, kind) or None, 60)
    wait_for("the end of the image", lambda: not engine.docker("image", "ls", "--quiet", f"{name}:latest") or None, 60)
