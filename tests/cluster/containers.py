"""Containers of a project: owners that can be asked, and trainers that tell what they do."""

from __future__ import annotations

import json
import urllib.request
from contextlib import suppress
from typing import Any, Final

from examples.digits.cluster.messages import Accuracy, Step
from ps_service.cli import probe
from ps_wire.errors import UnavailableError
from ps_wire.status import OwnerStatus
from ps_wire.tls import TLS
from tests.cluster.engine import EngineError, docker

GRPC: Final = 50051
HTTP: Final = 9464
_ASK: Final = f"""
import ssl, urllib.request
context = ssl.create_default_context(cafile="/certs/ca.pem")
context.load_cert_chain("/certs/owner.pem", "/certs/owner.key")
print(urllib.request.urlopen("https://127.0.0.1:{HTTP}/metrics", context=context).read().decode())
"""

OPTIMIZER: Final = "digits@ps0+ps1.optimizer"


class Container:
    """One container.

    Args:
        id: Its number in the engine.
        service: What it is one of.

    Attributes:
        name: Its name in the engine.
    """

    def __init__(self, id: str, service: str) -> None:
        self.id = id
        self.service = service
        self.name = self._inspect("{{.Name}}").removeprefix("/")

    @property
    def log(self) -> str:
        """Everything it has written, also before it was started again."""
        return docker("logs", self.id)

    @property
    def state(self) -> str:
        """Such as running or exited."""
        return self._inspect("{{.State.Status}}")

    @property
    def health(self) -> str:
        """Such as healthy or starting."""
        return self._inspect("{{.State.Health.Status}}")

    @property
    def exit_code(self) -> int | None:
        """None as long as it runs."""
        state, code = self._inspect("{{.State.Status}} {{.State.ExitCode}}").split()
        return int(code) if state == "exited" else None

    @property
    def restarts(self) -> int:
        """How often its restart policy has started it again."""
        return int(self._inspect("{{.RestartCount}}"))

    @property
    def network(self) -> str:
        """The network it is in."""
        return self._inspect("{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}")

    def run(self, *command: str) -> str:
        """What a command says that is run inside."""
        return docker("exec", self.id, *command)

    def kill(self) -> None:
        """Ends it as a power failure would."""
        docker("kill", "--signal", "KILL", self.id)

    def kill_inside(self) -> None:
        """Kills all processes in it; then it ends, and its restart policy has it started again."""
        with suppress(EngineError):  # with the container ends this command
            self.run("sh", "-c", "kill -KILL -1")

    def start(self) -> None:
        """Starts it again."""
        docker("start", self.id)

    def restart(self, grace_seconds: int) -> None:
        """Asks it to end, waits as long as that takes, and starts it again."""
        docker("restart", "--time", str(grace_seconds), self.id, seconds=grace_seconds + 60.0)

    def disconnect(self) -> str:
        """Pulls its cable; returns the network it was in."""
        network = self.network
        docker("network", "disconnect", network, self.id)
        return network

    def connect(self, network: str) -> None:
        """Plugs it in again, under the name that others know it by."""
        docker("network", "connect", "--alias", self.service, network, self.id)

    def _inspect(self, template: str) -> str:
        return docker("inspect", "--format", template, self.id)

    def __repr__(self) -> str:
        return self.name


class Owner(Container):
    """A container that runs an owner, which `tls` reaches."""

    def __init__(self, id: str, service: str, tls: TLS) -> None:
        super().__init__(id, service)
        self._tls = tls

    def address(self, port: int = GRPC) -> str | None:
        """Where this host reaches it; None while it cannot be. Another one whenever it was away."""
        try:
            return docker("port", self.id, f"{port}/tcp").splitlines()[0]
        except (EngineError, IndexError):
            return None

    def status(self) -> OwnerStatus | None:
        """How it is; None while it does not answer."""
        address = self.address()
        try:
            return probe.status(address, 3.0, self._tls) if address else None
        except UnavailableError:
            return None

    def sessions(self) -> int | None:
        """Numbers of sessions and members; None while the owner does not answer."""
        status = self.status()
        return None if status is None else status.sessions

    def version(self) -> int | None:
        """Number of steps that the trainers' optimizer has applied here; None while the owner does not answer."""
        status = self.status()
        if status is None:
            return None
        return next((each.version for each in status.optimizers if each.name == OPTIMIZER), 0)

    @property
    def checkpoints(self) -> set[str]:
        """What it has written into its volume."""
        return {name for name in docker("exec", self.id, "ls", "/data").split() if name.startswith("checkpoint-")}

    def scraped_version(self) -> int:
        """The same, as Prometheus would be told."""
        return self.scraped(f'ps_optimizer_version{{optimizer="{OPTIMIZER}"}}')

    def scraped(self, series: str) -> int:
        """The value of a series, as Prometheus would be told."""
        return _value(self._fetched("metrics"), series)

    def healthz(self) -> dict[str, Any]:
        """What it says to a load balancer while it serves."""
        told: dict[str, Any] = json.loads(self._fetched("healthz"))
        return told

    def _fetched(self, page: str) -> str:
        url = f"https://{self.address(HTTP)}/{page}"
        with urllib.request.urlopen(url, timeout=5.0, context=self._tls.context()) as reply:
            text: str = reply.read().decode()
            return text

    def connected(self) -> int:
        """Sessions with an open stream; the owner is asked from within, which needs no network."""
        return _value(docker("exec", self.id, "python", "-c", _ASK), 'ps_sessions{state="connected"}')


class Trainer(Container):
    """A container that runs a trainer."""

    @property
    def steps(self) -> list[Step]:
        """The steps that it has told of."""
        return [step for line in self.log.splitlines() if (step := Step.read(line))]

    @property
    def accuracy(self) -> float | None:
        """What it came to in the end."""
        found = [accuracy for line in self.log.splitlines() if (accuracy := Accuracy.read(line))]
        return found[-1].share if found else None


def _value(metrics: str, series: str) -> int:
    """The value of one series in what an owner tells Prometheus."""
    (value,) = (line.split()[-1] for line in metrics.splitlines() if line.startswith(series + " "))
    return int(float(value))
