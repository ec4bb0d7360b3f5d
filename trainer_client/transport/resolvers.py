"""Ways to find the address of an owner: a list of addresses, names in DNS, and functions of the program."""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ps_wire.errors import InvalidArgumentError, UnavailableError
from ps_wire.runtime.threads import BLOCKING
from trainer_client.transport.channels import checked_address

if TYPE_CHECKING:
    from ps_wire.tls import TLS

Find = Callable[[str], str | Awaitable[str]]
"""Tells the address (host:port) of the owner with a name. A function that is not async runs in a thread, and may block;
it raises any exception if it does not know."""

_PAUSE_SECONDS: Final = 0.25
"""Seconds between two questions for names that are not known yet."""

_FIND_SECONDS: Final = 10.0
"""Seconds that a function or a DNS server may take for an answer."""


class Candidates:
    """Addresses of which any may be right: where owners were found last, by their names; those given, and of a host
    name all that DNS has for it.

    `next` gives one after the other, round and round.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        if not addresses:
            raise InvalidArgumentError("directory= needs the address of at least one owner")
        self.given: Final = [checked_address(each, may_be_name=False) for each in addresses]
        self.found: Final[dict[str, str]] = {}
        self._left: list[str] = []
        self._hosts: dict[str, str] = {}

    @property
    def is_plain(self) -> bool:
        """Whether there is one address, which stays what it is."""
        return len(self.given) == 1 and _host_name(self.given[0]) is None

    async def all(self) -> list[str]:
        """All addresses, each once."""
        looked_up = await asyncio.gather(*map(_looked_up, self.given))
        for given, addresses in zip(self.given, looked_up, strict=True):
            self._hosts.update(dict.fromkeys(addresses, given.rpartition(":")[0] if [given] != addresses else ""))
        return list(dict.fromkeys([*self.found.values(), *(each for addresses in looked_up for each in addresses)]))

    def tls_of(self, address: str, tls: TLS | None) -> TLS | None:
        """How an address is reached that was given, or found under a name: certificates have the names of hosts."""
        return None if tls is None else tls.under(self._hosts.get(address, ""))

    async def next(self) -> str:
        """The next one. DNS is asked again in each round."""
        if not self._left:
            self._left = await self.all()
        return self._left.pop(0)

    def __str__(self) -> str:
        return ", ".join(self.given)


async def found(find: Find, name: str) -> str:
    """What a function of the program tells; raises what that raises, and `InvalidArgumentError` if it is no address."""
    async with asyncio.timeout(_FIND_SECONDS):
        is_async = inspect.iscoroutinefunction(find) or inspect.iscoroutinefunction(type(find).__call__)
        told = find(name) if is_async else await BLOCKING.run(find, name)
        address = await told if inspect.isawaitable(told) else told
    if not isinstance(address, str):
        raise InvalidArgumentError(f"the address of {name!r} is host:port, not a {type(address).__name__}")
    return checked_address(address, may_be_name=False)


async def listed(names: Callable[[], Sequence[str]], patience: float) -> Sequence[str]:
    """What a function that may block tells, asked again for so many seconds if it raises `UnavailableError`."""
    until = asyncio.get_running_loop().time() + patience
    while True:
        try:
            return await BLOCKING.run(names)
        except UnavailableError:
            if asyncio.get_running_loop().time() >= until:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)


def _host_name(address: str) -> tuple[str, str] | None:
    """The name in DNS and the port of an address; None if it has no such name."""
    host, _, port = address.rpartition(":")
    if host == "localhost" or ":" in host or not port.isdecimal():
        return None
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host, port
    return None


async def _looked_up(address: str) -> list[str]:
    named = _host_name(address)
    if named is None:
        return [address]
    host, port = named
    async with asyncio.timeout(_FIND_SECONDS):
        infos = await BLOCKING.run(partial(socket.getaddrinfo, type=socket.SOCK_STREAM), host, int(port))
    return [
        f"[{where[0]}]:{port}" if family == socket.AF_INET6 else f"{where[0]}:{port}"
        for family, _, _, _, where in infos
    ]
