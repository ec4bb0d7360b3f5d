"""The Docker engine and Compose, by their command lines."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache


class EngineError(AssertionError):
    """A command failed, or there is no engine; the message has what it said."""


def run(
    command: Sequence[str], seconds: float = 60.0, environment: Mapping[str, str] | None = None, cwd: str | None = None
) -> str:
    """Runs a command and returns what it printed.

    Raises:
        EngineError: It is not there, failed, or took too long.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            env=environment,
            cwd=cwd,
            check=False,
            close_fds=False,  # a reaper waits for the end of this command, too
        )
    except FileNotFoundError:
        raise EngineError(f"there is no command {command[0]!r}") from None
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{' '.join(command)} took more than {seconds:g} s; it said:\n{error.stdout}") from None
    if done.returncode:
        raise EngineError(f"{' '.join(command)} ended with code {done.returncode}; it said:\n{done.stdout}")
    return done.stdout


def docker(*arguments: str, seconds: float = 60.0) -> str:
    """Runs a command of the engine.

    Raises:
        EngineError: It failed.
    """
    return run(["docker", *arguments], seconds).strip()


def check() -> None:
    """Whether there are an engine and a Compose.

    Raises:
        EngineError: One is missing.
    """
    try:
        docker("info", "--format", "{{.ServerVersion}}")
    except EngineError as error:
        raise EngineError(f"these tests need a Docker engine, and there is none: {error}") from None
    compose()


@cache
def compose() -> tuple[str, ...]:
    """How Compose is called here: as a part of docker, or by the older command of its own.

    Raises:
        EngineError: It is not installed.
    """
    if _works("docker", "compose", "version"):
        return ("docker", "compose")
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    raise EngineError("these tests need Compose: neither `docker compose` nor `docker-compose` is installed")


@cache
def environment() -> Mapping[str, str]:
    """For Compose: nothing of ours from outside, and the older builder only where there is no other."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PS_", "PS0_", "PS1_", "COMPOSE_"))
    }
    return clean if _works("docker", "buildx", "version") else {**clean, "DOCKER_BUILDKIT": "0"}


def _works(*command: str) -> bool:
    try:
        run(command, 30.0)
    except EngineError:
        return False
    return True
