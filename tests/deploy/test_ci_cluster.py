"""When the cluster test runs, when it is left out, and when it has to run: with stand-ins for an engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "cluster"
ROOT = os.geteuid() == 0
ROOT_ONLY = pytest.mark.skipif(not ROOT, reason="only root starts an engine")
RUN = "make cluster-test ARGS=--junitxml=out/results/cluster.xml"

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
ENGINE_SCRIPT = """#!/bin/bash
echo "the script has run" >> $STATE/said
[[ ! -e $STATE/broken ]] || exit 1
dockerd &
while [[ ! -e $STATE/engine ]]; do sleep 0.01; done
touch $STATE/image
"""
APT = """#!/bin/bash
echo "apt-get $1" >> $STATE/said
[[ -e $STATE/packages ]] || exit 1
[[ $1 != install ]] || mv $STATE/dockerd $COMMANDS/dockerd
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
        for name in ("bash", "cat", "dirname", "kill", "mkdir", "mv", "sleep", "tail", "timeout", "touch"):
            found = shutil.which(name)
            assert found is not None, name
            (self._commands / name).symlink_to(found)
        self.command("make", MAKE)
        self.command("apt-get", APT)

    def command(self, name: str, text: str) -> None:
        """Installs a command."""
        (self._commands / name).write_text(text)
        (self._commands / name).chmod(0o755)

    def has(self, *names: str) -> None:
        """Puts things in place."""
        for name in names:
            (self.state / name).touch()

    def run(self, **variables: str) -> tuple[int, str, list[str]]:
        """Runs the script: its exit code, what it printed, and what the stand-ins have to say."""
        environment = {
            "PATH": str(self._commands),
            "STATE": str(self.state),
            "COMMANDS": str(self._commands),
            "DOCKER_PID_FILE": str(self.state / "pid"),
            "DOCKER_ENGINE_SCRIPT": "",  # none, not even the one at the usual place
            **variables,
        }
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
    assert machine.run() == (0, "", [RUN])


def test_when_it_fails_so_does_the_script(machine: Machine) -> None:
    machine.has("engine", "compose", "image", "failing")
    code, _, said = machine.run()
    assert code != 0 and said == [RUN]


def test_the_older_compose_will_do(machine: Machine) -> None:
    machine.has("engine", "image")
    machine.command("docker-compose", "#!/bin/bash\n")
    assert machine.run() == (0, "", [RUN])


def test_an_image_that_is_not_there_is_pulled(machine: Machine) -> None:
    machine.has("engine", "compose", "registry")
    assert machine.run() == (0, "", [RUN])
    assert (machine.state / "image").exists()


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (("engine", "image"), "the command docker-compose is not installed, and apt-get could not install it"),
        (("engine", "compose"), "the image python:3.11-slim is not there and cannot be pulled"),
        (("compose", "image"), "the command dockerd is not installed, and apt-get could not install it"),
    ],
)
@ROOT_ONLY
def test_root_has_to_run_it(machine: Machine, there: tuple[str, ...], reason: str) -> None:
    machine.has(*there)
    code, printed, said = machine.run()
    assert code == 1 and RUN not in said
    assert "THE CLUSTER TEST WAS LEFT OUT" in printed and f"Reason: {reason}\n" in printed


def test_it_can_be_left_out_for_a_reason(machine: Machine) -> None:
    machine.has("engine", "compose", "image")
    code, printed, said = machine.run(WITHOUT_CLUSTER_TEST="no disk to spare")
    assert (code, said) == (0, [])
    assert "THE CLUSTER TEST WAS LEFT OUT" in printed and "Reason: no disk to spare\n" in printed


@ROOT_ONLY
def test_what_debian_has_is_installed(machine: Machine) -> None:
    machine.has("compose", "image", "packages")
    (machine.state / "dockerd").write_text(DOCKERD)
    (machine.state / "dockerd").chmod(0o755)
    code, _, said = machine.run()
    assert (code, said) == (0, ["apt-get update", "apt-get install", RUN, "dockerd stopped"])


@ROOT_ONLY
def test_a_script_that_a_variable_names_starts_an_engine(machine: Machine) -> None:
    machine.has("compose")
    machine.command("dockerd", DOCKERD)
    machine.command("engine-script", ENGINE_SCRIPT)
    code, _, said = machine.run(DOCKER_ENGINE_SCRIPT="engine-script")
    assert (code, said) == (0, ["the script has run", RUN, "dockerd stopped"])


@ROOT_ONLY
def test_a_script_is_not_asked_where_nothing_is_missing(machine: Machine) -> None:
    machine.has("engine", "compose", "image")
    machine.command("engine-script", ENGINE_SCRIPT)
    assert machine.run(DOCKER_ENGINE_SCRIPT="engine-script") == (0, "", [RUN])


@ROOT_ONLY
def test_an_engine_that_ran_before_a_script_goes_on(machine: Machine) -> None:
    machine.has("compose", "engine")
    machine.command("dockerd", DOCKERD)
    machine.command("engine-script", ENGINE_SCRIPT.replace("dockerd &", ""))
    code, _, said = machine.run(DOCKER_ENGINE_SCRIPT="engine-script")
    assert (code, said) == (0, ["the script has run", RUN])


@ROOT_ONLY
def test_a_script_that_fails_is_a_failure(machine: Machine) -> None:
    machine.has("compose", "broken")
    machine.command("engine-script", ENGINE_SCRIPT)
    code, printed, said = machine.run(DOCKER_ENGINE_SCRIPT="engine-script")
    assert (code, said) == (1, ["the script has run"])
    assert "Reason: engine-script failed\n" in printed


@ROOT_ONLY
@pytest.mark.parametrize("also", [(), ("failing",)], ids=["passing", "failing"])
def test_an_engine_that_is_started_for_it_is_stopped_again(machine: Machine, also: tuple[str, ...]) -> None:
    machine.has("compose", "image", *also)
    machine.command("dockerd", DOCKERD)
    code, _, said = machine.run()
    assert (code != 0) == bool(also)
    assert said == [RUN, "dockerd stopped"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((machine.state / "pid").read_text()), 0)


@ROOT_ONLY
def test_an_engine_that_does_not_start_says_why(machine: Machine) -> None:
    machine.has("compose", "image", "broken")
    machine.command("dockerd", DOCKERD)
    code, printed, said = machine.run()
    assert (code, said) == (1, [])
    assert "Reason: dockerd could not be started: no permission to mount\n" in printed
