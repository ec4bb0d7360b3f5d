"""The owner of a program that joins a group by itself."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ps_service.engine import Engine
from ps_service.functions.groups import Level
from ps_service.functions.torch_functions import TorchFunctions
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import MAX_SEGMENT_BYTES, Limits
from trainer_client.handles.listed import listed
from trainer_client.rpc import current
from trainer_client.rpc.options import DeviceMaps, usable

if TYPE_CHECKING:
    import torch

    from ps_service.access.token_file import TokenFile
    from trainer_client.session.settings import Settings

Offer = str | ModuleType | type | Callable[..., Any]

_GIVEN: Final = "in the program of that member, or in a module that this gives to init_rpc(…, allow=[…])"
"""Where members find what they may use, for messages."""

_SPARE_THREADS: Final = 64
"""Threads that replace those of calls that were given up and still run; each is made when it is needed.

One member may hold half of them. Programs for torch give up many calls that go on, because there later calls wait."""


@dataclass(frozen=True, slots=True)
class OwnOwner:
    """What it is made of. `settings` are those of the client beside it: both have the same transports and certificate.
    Without a `device`, it has the one of the device maps."""

    allowed: AllowList
    settings: Settings
    placement: DeviceMaps
    device: str | torch.device | None
    threads: int
    lease_seconds: float
    advertise: str
    identities: TokenFile | None
    insecure: bool

    def server(self, listen: str, size: int) -> Server:
        """A new owner each time: one that could not start is over. It keeps the directory of a group of this size, if
        that is not 0. Raises `ValueError` if others can reach it and nothing is encrypted, and `InvalidArgumentError`
        if `tls` has no certificate to serve with."""
        own = self.settings
        engine = Engine(
            own.member,
            self.allowed,
            device=usable(self.device or self.placement.here or "cpu"),
            limits=Limits(
                lease_seconds=self.lease_seconds, max_segment_bytes=MAX_SEGMENT_BYTES if own.shared_memory else 0
            ),
            threads=self.threads,
            spare_threads=_SPARE_THREADS,
            tokens=self.identities,
        )
        if size:
            engine.directory.begin(size)
        tls = None if own.tls is None else own.tls.of_member()
        return Server(engine, listen, self.insecure, direct_port=0 if own.direct else "off", tls=tls)

    def address(self, bound: str) -> str:
        """Where others reach it, if it listens at an address."""
        if self.advertise:
            return self.advertise
        host, _, port = bound.rpartition(":")
        if host.strip("[]") not in ("0.0.0.0", "::"):
            return bound
        try:
            return f"{socket.gethostbyname(socket.gethostname())}:{port}"
        except OSError as error:
            raise InvalidArgumentError(f"this host does not know its own address ({error}); give advertise=") from error


def allowing(offers: Iterable[Offer]) -> AllowList:
    """What others may call: what is marked in the running program, and in what is offered."""
    allowed = AllowList(functions=TorchFunctions(Level.ALL), given=_GIVEN)
    import __main__ as program

    with suppress(ValueError):  # it need not define anything that others may call
        allowed.add(program)
    for offer in map(imported, (*current.offers, *listed(offers))):
        if isinstance(offer, ModuleType):
            allowed.add(offer)
        else:
            allowed.allow(offer)
    allowed.warn()
    return allowed


def imported(offer: Offer) -> ModuleType | type | Callable[..., Any]:
    """What is offered; a module instead of its name. Raises `ImportError`."""
    return importlib.import_module(offer) if isinstance(offer, str) else offer
