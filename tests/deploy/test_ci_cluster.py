"""When the cluster test is run, and when it is left out: with stand-ins for the commands of the engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "cluster"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts an engine")

DOCKER = """#!/bin/bash
case "$1" in
  info) [[ -e $STATE/engine ]] ;;
  compose) [[ -e $STATE/compose ]] ;;
  image) [[ -e $STATE/image ]] ;;
  pull) [[ -e $STATE/registry ]] && touch $STATE/image ;;
esac
"""
DOCKERD = """#!/bin/bash
echo "level=info msg=starting"
[[ ! -e $STATE/broken ]] || { echo "no permission to mount"; exit 1; }
trap 'kill %1; echo "dockerd stopped" >> $STATE/said; exit 0' TERM
echo $$ > $STATE/pid
touch $STATE/engine
sleep 60 &
wait
"""
MAKE = """#!/bin/bash
echo "make $*" >> $STATE/said
[[ ! -e $STATE/failing ]]
"""


class Machine:
    """A machine with some commands and with some things in place.

    Args:
        folder: For its commands, and for what there is.
    """

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self._commands = folder / "bin"
        self.state.mkdir()
        self._commands.mkdir()
        # Nothing else of the real machine's is found, neither its engine nor its make.
        for name in ("bash", "cat", "dirname", "kill", "mkdir", "sleep", "tail", "timeout", "touch"):
            found = shutil.which(name)
            assert found is not None, name
            (self._commands / name).symlink_to(found)
        self.command("make", MAKE)

    def command(self, name: str, text: str) -> None:
        """Installs a command."""
        (self._commands / name).write_text(text)
        (self._commands / name).chmod(0o755)

    def has(self, *names: str) -> None:
        """Puts things in place."""
        for name in names:
            (self.state / name).touch()

    def run(self) -> tuple[int, str, list[str]]:
        """Runs the script: its exit code, what it printed, and what the stand-ins have to say."""
        environment = {"PATH": str(self._commands), "STATE": str(self.state)}
        done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, env=environment, check=False, timeout=60)
        said = self.state / "said"
        return done.returncode, done.stdout + done.stderr, said.read_text().splitlines() if said.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One with the commands of Docker, of which none works yet."""
    machine = Machine(tmp_path)
    machine.command("docker", DOCKER)
    return machine


def test_with_an_engine_and_an_image_it_is_run(machine: Machine) -> None:
    machine.has("engine", "compose", "image")
    assert machine.run() == (0, "", ["make cluster-test"])


def test_when_it_fails_so_does_the_script(machine: Machine) -> None:
    machine.has("engine", "compose", "image", "failing")
    code, _, said = machine.run()
    assert code != 0 and said == ["make cluster-test"]


def test_the_older_compose_will_do(machine: Machine) -> None:
    machine.has("engine", "image")
    machine.command("docker-compose", "#!/bin/bash\n")
    assert machine.run() == (0, "", ["make cluster-test"])


def test_an_image_that_is_not_there_is_pulled(machine: Machine) -> None:
    machine.has("engine", "compose", "registry")
    assert machine.run() == (0, "", ["make cluster-test"])
    assert (machine.state / "image").exists()


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (("engine", "image"), "Compose is not installed"),
        (("engine", "compose"), "the image python:3.11-slim is not there and cannot be pulled"),
        (("compose", "image"), "no Docker engine answers, and dockerd is not installed"),
    ],
)
def test_missing_requirements_are_reported_prominently(machine: Machine, there: tuple[str, ...], reason: str) -> None:
    machine.has(*there)
    code, printed, said = machine.run()
    assert (code, said) == (0, [])
    assert "THE CLUSTER TEST WAS LEFT OUT" in printed and f"Reason: {reason}\n" in printed


def test_without_docker_it_is_left_out(tmp_path: Path) -> None:
    _, printed, said = Machine(tmp_path).run()
    assert "THE CLUSTER TEST WAS LEFT OUT" in printed and "Reason: the command docker is not installed" in printed
    assert said == []


@ROOT_ONLY
@pytest.mark.parametrize("also", [(), ("failing",)], ids=["passing", "failing"])
def test_an_engine_that_is_started_for_it_is_stopped_again(machine: Machine, also: tuple[str, ...]) -> None:
    machine.has("compose", "image", *also)
    machine.command("dockerd", DOCKERD)
    code, _, said = machine.run()
    assert (code != 0) == bool(also)
    assert said == ["make cluster-test", "dockerd stopped"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((machine.state / "pid").read_text()), 0)


@ROOT_ONLY
def test_an_engine_that_does_not_start_says_why(machine: Machine) -> None:
    machine.has("compose", "image", "broken")
    machine.command("dockerd", DOCKERD)
    code, printed, said = machine.run()
    assert (code, said) == (0, [])
    assert "Reason: dockerd could not be started: no permission to mount\n" in printed
