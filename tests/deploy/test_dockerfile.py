"""Tests the Dockerfile without building the image."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
Instruction = tuple[str, str]


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, without comments, each on one line."""
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")).replace("\\\n", " ")
    found: list[list[Instruction]] = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, rest = line.split(maxsplit=1)
        if name == "FROM":
            found.append([])
        found[-1].append((name, " ".join(rest.split())))
    return found


def all_of(stage: list[Instruction], name: str) -> list[str]:
    return [rest for each, rest in stage if each == name]


def test_both_stages_are_made_of_the_plain_image() -> None:
    builder, final = stages()
    assert builder[0] == ("FROM", "python:3.11-slim AS builder")
    assert final[0] == ("FROM", "python:3.11-slim")


def test_the_image_runs_as_a_numeric_user_other_than_root() -> None:
    _, final = stages()
    (user,) = all_of(final, "USER")
    uid, gid = map(int, user.split(":"))
    assert uid > 0 and gid > 0
    (making,) = all_of(final, "RUN")
    assert f"--uid {uid}" in making and f"--gid {gid}" in making
    assert "install -d -o ps -g ps /data /certs" in making


@pytest.mark.parametrize("name", ["ENTRYPOINT", "CMD", "HEALTHCHECK"])
def test_no_shell_stands_between_a_signal_and_the_process(name: str) -> None:
    _, final = stages()
    (command,) = all_of(final, name)
    assert all(isinstance(part, str) for part in json.loads(command.partition("CMD ")[2] or command))


def test_packages_are_installed_before_the_sources_come() -> None:
    builder, _ = stages()
    order = [f"{name} {rest}" for name, rest in builder]
    packages = max(index for index, each in enumerate(order) if "install" in each and "constraints.txt" in each)
    sources = min(
        order.index(f"COPY {name} ./{name}") for name in ("ps_wire", "ps_service", "trainer_client", "ps_reader")
    )
    assert packages < sources
    installing = [each for each in order if " install " in each and "--no-deps" not in each]
    assert len(installing) == 3 and all("-c constraints.txt" in each for each in installing)


def test_neither_pip_nor_its_cache_nor_a_compiler_is_left() -> None:
    builder, final = stages()
    assert any("PIP_NO_CACHE_DIR=1" in each for each in all_of(builder, "ENV"))
    assert "python3 -m venv --without-pip /opt/venv" in all_of(builder, "RUN")
    assert not any("pip" in each or "apt" in each for each in all_of(final, "RUN"))


def test_everything_that_is_copied_is_sent_and_little_else_is() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [rule for rule in ignored if rule and not rule.startswith("#")]
    assert rules[0] == "*", "what is not named stays here"
    sent = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        source
        for stage in stages()
        for rest in all_of(stage, "COPY")
        if not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert {source.split("/")[0] for source in copied} == sent
    for source in copied:
        assert (ROOT / source).exists(), source
    assert any(fnmatch("a/__pycache__", rule) for rule in rules)


def test_the_torch_of_the_image_is_the_one_of_the_constraints() -> None:
    (pin,) = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert any(each.split()[-1] == pin or f" {pin} " in each for each in all_of(stages()[0], "RUN"))


def test_no_registry_and_no_index_is_named() -> None:
    for path in (ROOT / ".dockerignore", *DEPLOY.iterdir()):
        if path.is_file():
            assert not re.search(r"https?://(?!127\.0\.0\.1|localhost)", path.read_text("utf-8")), path


# The entry script


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder with stand-ins for what the script may become: each prints its number and what it was called with."""
    for name in ("ps-service", "python"):
        stand_in = tmp_path / name
        stand_in.write_text('#!/bin/sh\necho "$$ $(basename "$0") $*"\n')
        stand_in.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "becomes"),
    [
        ([], "ps-service serve"),
        (["server", "--name", "ps0"], "ps-service serve --name ps0"),
        (["trainer"], "python -m examples.digits.cluster"),
        (["trainer", "--steps", "5"], "python -m examples.digits.cluster --steps 5"),
        (["ps-service", "status", "a b"], "ps-service status a b"),
    ],
)
def test_the_script_replaces_itself_by_the_command(commands: Path, arguments: list[str], becomes: str) -> None:
    environment = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    command = [str(DEPLOY / "entry.sh"), *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        said = process.communicate()[0]
    number, _, rest = said.strip().partition(" ")
    assert rest == becomes
    assert int(number) == process.pid, "it has become the process, and not started another"


# What is installed


def requirements(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEPLOY / "requirements.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_requirements_are_those_of_the_project_and_of_the_extras(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\ndependencies = ["a>=1", "b"]\n'
        '[project.optional-dependencies]\none = ["c; python_version>\'3\'"]\nother = ["d"]\n'
    )
    assert requirements(str(project)).stdout == "a>=1\nb\n"
    assert requirements(str(project), "one").stdout == "a>=1\nb\nc; python_version>'3'\n"
    assert requirements(str(project), "nothing").returncode != 0
