"""The gRPC channels to owners, and unary requests on them; checks of addresses, and explanations of failures."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

import grpc

from ps_wire.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    PsError,
    UnauthenticatedError,
    UnavailableError,
)
from ps_wire.limits import GRPC_OPTIONS
from ps_wire.runtime import forks
from ps_wire.tokens import metadata_of
from ps_wire.v1.owner_pb2_grpc import DirectoryStub, OwnerStub

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_wire.tls import TLS
    from ps_wire.tokens import Token

_OPTIONS: Final = (
    *GRPC_OPTIONS,
    # The session decides when to connect again.
    ("grpc.enable_retries", 0),
    # A broken connection must not make the next one wait: nothing is shared between channels.
    ("grpc.use_local_subchannel_pool", 1),
)

_OF_GRPC: Final = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
"""Prefixes of addresses in gRPC's own syntax, which gRPC checks."""

_REFUSALS: Final[dict[grpc.StatusCode, type[PsError]]] = {
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
}

HTTP_SERVER: Final = "an HTTP server is there; use the port of --listen, not that of --http"
"""Why no owner is reached at a port where there will be none."""


def open_channel(address: str, tls: TLS | None = None) -> grpc.aio.Channel:
    """A channel to the owner at host:port. Raises `UnavailableError` in a fork of a process that had used gRPC, and
    `InvalidArgumentError` if a file of `tls` cannot be read."""
    forks.use_grpc()
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, _credentials(tls), options=_options(tls))


def open_blocking_channel(address: str, tls: TLS | None = None) -> grpc.Channel:
    """The same for code that waits for each answer."""
    forks.use_grpc()
    if tls is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, _credentials(tls), options=_options(tls))


def _credentials(tls: TLS) -> grpc.ChannelCredentials:
    authorities, key, cert = tls.read()
    return grpc.ssl_channel_credentials(authorities, key, cert)


def _options(tls: TLS) -> tuple[tuple[str, Any], ...]:
    return (*_OPTIONS, ("grpc.ssl_target_name_override", tls.server_name)) if tls.server_name else _OPTIONS


def checked_address(address: str, *, may_be_name: bool = True) -> str:
    """An address as gRPC takes it: `host:port`, with an IPv6 address in brackets, or in gRPC's own syntax.

    `may_be_name`: with other arguments, the name of an owner could stand there. Raises `InvalidArgumentError` if it is
    none, so no time could reach an owner there.
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


def reason(code: grpc.StatusCode, details: str | None) -> str:
    """Why a request or a stream failed. gRPC's own details are long where no connection could be made."""
    details = details or ""
    if "Connection refused" in details:
        return "connection refused; nothing listens there"
    if "http1.x" in details or "Failed parsing HTTP/2" in details:
        return HTTP_SERVER
    if "failed to connect" in details and "Socket closed" in details:
        return (
            "it closes each new connection; with TLS on one side only, owners and trainers do not understand each other"
        )
    return f"{details} ({code.name})" if details else code.name


def refusal(code: grpc.StatusCode, details: str | None) -> PsError:
    """The error of an owner that does not let the caller do something, or does not know it."""
    return _REFUSALS[code](details or "this is refused")


def is_refusal(code: grpc.StatusCode) -> bool:
    """Whether an owner does not let the caller do something, or does not know it: to try again is of no use."""
    return code in _REFUSALS


def unanswered(error: Any, seconds: float) -> str:
    """Why a unary request that could take so many seconds has failed with an error of gRPC."""
    late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return f"nothing came within {seconds:g} s" if late else reason(error.code(), error.details())


class UnaryRequests:
    """Asks owners for what needs no session: their status and history. Used on one event loop. `stub` makes the methods
    of the service on a channel."""

    def __init__(
        self,
        tls: TLS | None = None,
        stub: Callable[[grpc.aio.Channel], Any] = OwnerStub,
        token: Token = None,
        namespace: str = "",
    ) -> None:
        self._tls = tls
        self._token, self._namespace = token, namespace
        self._stub = stub
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def ask(self, address: str, method: str, request: Any, seconds: float) -> Any:
        """Sends a request to the owner at an address.

        Raises `UnavailableError` if it fails, or has no answer in time; and the error of an owner that refuses it, or
        wants to know who asks.
        """
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, self._tls)
        try:
            stub = getattr(self._stub(channel), method)
            return await stub(request, timeout=seconds, metadata=metadata_of(self._token, self._namespace))
        except grpc.aio.AioRpcError as error:
            if is_refusal(error.code()):
                raise refusal(error.code(), error.details()) from None
            if self._channels.get(address) is channel:  # and not one that another request has opened since
                # gRPC waits ever longer before it tries a broken connection again.
                await self.forget(address)
            raise UnavailableError(f"the owner at {address} does not answer: {unanswered(error, seconds)}") from None
        except asyncio.CancelledError:
            # gRPC also raises it in a task that was not cancelled, if another request has closed the channel.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise UnavailableError(f"the owner at {address} does not answer: its connection was closed here") from None

    async def forget(self, address: str) -> None:
        """Closes the channel to an address, if there is one."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """Closes all channels."""
        for address in list(self._channels):
            await self.forget(address)


def keepers(tls: TLS | None, token: Token = None) -> UnaryRequests:
    """Asks the keepers of a directory that has several."""
    return UnaryRequests(tls, DirectoryStub, token)
