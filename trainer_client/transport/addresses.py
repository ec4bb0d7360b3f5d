"""Checks addresses of owners before they are tried."""

from __future__ import annotations

import re
from typing import Final

from ps_wire.errors import InvalidArgumentError

_OF_GRPC: Final = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
"""Prefixes of addresses in gRPC's own syntax, which gRPC checks."""


def checked(address: str, *, may_be_name: bool = True) -> str:
    """An address as gRPC takes it.

    Args:
        address: `host:port`, with an IPv6 address in brackets; or in gRPC's syntax, such as `dns:///host:port`.
        may_be_name: Whether the name of an owner could stand there, with other arguments.

    Raises:
        InvalidArgumentError: It is none, so no time could reach an owner there.
    """
    if address.startswith(_OF_GRPC):
        return address
    if "://" in address:
        scheme, _, rest = address.partition("://")
        raise InvalidArgumentError(
            f"{address!r} is not the address of an owner: give host:port without {scheme}:// and a path, as in "
            f"{_with_port(rest.partition('/')[0])!r}; the port is that of --listen, not that of --http"
        )
    host, _, port = address.rpartition(":")
    if host and _is_port(port) and not re.search(r"[\s/]", host):
        if ":" not in host or (host.startswith("[") and host.endswith("]")):
            return address
        raise InvalidArgumentError(
            f"{address!r} is not host:port: put an IPv6 address in brackets, as in '[::1]:50051'"
        )
    message = f"{address!r} is not the address of an owner: give host:port, as in {_with_port(address)!r}"
    if may_be_name and re.fullmatch(r"[A-Za-z_][\w.-]*", address):
        message += (
            f"; to find an owner by its name, add directory='host:port', as in connect({address!r}, directory=...)"
        )
    raise InvalidArgumentError(message)


def _with_port(text: str) -> str:
    host, _, port = text.partition(":")
    host = host if re.fullmatch(r"[\w.-]+", host) else "127.0.0.1"
    return f"{host}:{port if _is_port(port) else 50051}"


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text) < 65_536
