"""One run of deploy/compose.yaml: under a name of its own, on ports that are free, and with nothing left afterwards."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ps_wire.tls import TLS
from tests.cluster import engine
from tests.cluster.containers import Container, Owner, Trainer
from tests.cluster.engine import EngineError, docker
from tests.cluster.reaper import ROOT, Reaper, left

FILE: Final = ROOT / "deploy" / "compose.yaml"
OUT: Final = ROOT / "out" / "cluster"
OWNERS: Final = ("directory", "ps0", "ps1")

_FREE_PORTS: Final = {
    name: "0"
    for name in (
        *("PS_DIRECTORY_PORT", "PS0_PORT", "PS1_PORT"),
        *("PS_DIRECTORY_HTTP_PORT", "PS0_HTTP_PORT", "PS1_HTTP_PORT"),
    )
}


class Project:
    """Builds an image, runs containers of it, and removes all of that when its block is left or this process ends.

    When the block is left with an error, what the containers have written is kept in `out/cluster` first.

    Args:
        files: Of Compose, besides deploy/compose.yaml.
        variables: What is to be other than in deploy/.env.

    Attributes:
        name: What everything of it begins with.
        image: The image, which is removed with the rest.
    """

    def __init__(self, *files: Path, **variables: str) -> None:
        self._files = (FILE, *files)
        self.name = f"pstest{secrets.token_hex(4)}"
        self.image = f"{self.name}:latest"
        self._variables: Mapping[str, str] = {
            "COMPOSE_PROJECT_NAME": self.name,
            "PS_IMAGE": self.image,
            **_FREE_PORTS,
            **variables,
        }
        self._certs = tempfile.TemporaryDirectory(prefix="certs-")
        self._began = time.monotonic()

    def compose(self, *arguments: str, seconds: float = 120.0) -> str:
        """Runs a command of Compose.

        Raises:
            EngineError: It failed.
        """
        files = [part for file in self._files for part in ("--file", str(file))]
        command = [*engine.compose(), *files, *arguments]
        return engine.run(command, seconds, {**engine.environment(), **self._variables}, str(FILE.parent))

    def build(self) -> None:
        """Makes the image; only the first time does that take minutes."""
        self.compose("build", "directory", seconds=1200.0)

    def up(self, *services: str) -> None:
        """Starts everything, or some services, and returns when the owners are healthy that others wait for."""
        self.compose("up", "--detach", "--no-build", *services, seconds=180.0)

    def scale_trainers(self, count: int) -> None:
        """Starts more trainers; those that are there stay as they are."""
        self.compose(
            *("up", "--detach", "--no-build", "--no-recreate", "--no-deps"), "--scale", f"trainer={count}", "trainer"
        )

    def owners(self) -> dict[str, Owner]:
        """The owners, by name."""
        return {name: Owner(id, name, self.tls) for name in OWNERS for id in self._ids(name)}

    @cached_property
    def tls(self) -> TLS:
        """The certificates of an operator, out of their volume."""
        (id,) = self._ids("certs")
        docker("cp", f"{id}:/certs/.", self._certs.name)
        return TLS(*(Path(self._certs.name, file) for file in ("ca.pem", "operator.pem", "operator.key")))

    def container(self, service: str) -> Container:
        """The only container of a service."""
        (id,) = self._ids(service)
        return Container(id, service)

    def trainers(self) -> list[Trainer]:
        """The trainers, the oldest first."""
        return sorted((Trainer(id, "trainer") for id in self._ids("trainer")), key=lambda each: each.name)

    def down(self) -> None:
        """Removes containers, networks and volumes."""
        self.compose("--profile", "observe", "down", "--volumes", "--remove-orphans", "--timeout", "60", seconds=300.0)

    def left(self) -> list[str]:
        """What is still there of it."""
        return [f"{kind} {id}" for kind in ("container", "network", "volume") for id in left(self.name, kind)]

    def say(self, what: str) -> None:
        """Prints the progress."""
        print(f"{time.monotonic() - self._began:6.1f} s  {what}", flush=True)

    def __enter__(self) -> Self:
        self._reaper = Reaper(self.name, self.image)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._keep(f"{kind.__name__ if kind else 'error'}: {error}")
        # The reaper removes the image, and what is left if this fails.
        with self._certs, self._reaper:
            self.down()

    def _ids(self, service: str) -> list[str]:
        label = "label=com.docker.compose"
        found = docker(
            *("ps", "--all", "--quiet", "--no-trunc"),
            *("--filter", f"{label}.project={self.name}", "--filter", f"{label}.service={service}"),
        )
        return found.split()

    def _keep(self, error: str) -> None:
        """Writes logs and states, to find the cause of a failure."""
        folder = OUT / self.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "error.txt").write_text(error + "\n")
        containers: list[Container] = []
        with suppress(EngineError):
            containers = [*self.owners().values(), *self.trainers()]
        for each in containers:
            with suppress(EngineError):
                (folder / f"{each.name}.log").write_text(docker("logs", "--timestamps", each.id) + "\n")
                (folder / f"{each.name}.json").write_text(docker("inspect", each.id) + "\n")
            if isinstance(each, Owner) and (status := each.status()) is not None:
                (folder / f"{each.name}.status").write_text(str(status))
        with suppress(EngineError):
            (folder / "ps.txt").write_text(self.compose("ps") + "\n")
        self.say(f"failed; what is known about it is kept in {folder}")
