"""Asks those who send HTTP requests who they are, before a handler runs, and checks where a request comes from."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from ps_service import addresses
from ps_service.access import roles
from ps_service.monitoring.paths import OTHER, PATHS
from ps_wire.errors import PermissionDeniedError, UnauthenticatedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.typedefs import Handler

    from ps_service.access.access import Access, Point

_OPEN: Final = frozenset(("/healthz", "/readyz", "/metrics"))
"""What is no part of the page, and may be asked for under any name."""


class HttpAccess:
    """Lets requests in, whatever their method, path and headers are. `address` is where the owner is reached.

    The page is only for names that this host has (against DNS rebinding), and for no other origin. On loopback that
    holds without tokens, too.
    """

    def __init__(self, access: Access, listen: str, address: Callable[[], str]) -> None:
        self._access = access
        self._listen = listen
        self._address = address

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A middleware of the application. It also runs for what is not found."""
        resource = request.match_info.route.resource
        path = "" if resource is None else resource.canonical
        if path not in _OPEN and (self._access.is_on or (path in PATHS and addresses.is_loopback(self._listen))):
            self._check_place(request)
        point = PATHS.get(path, OTHER)
        if self._access.is_on and point.needs != roles.NOBODY:
            _check_caller(self._access, point, request)
        return await handler(request)

    def _check_place(self, request: web.Request) -> None:
        hosts = request.headers.getall(hdrs.HOST, [])
        host = hosts[0] if len(hosts) == 1 else ""
        if not self._is_ours(host):
            raise web.HTTPForbidden(
                text=f"this page is not served as {_shown(host)}: open it as localhost, or at the address of its host\n"
            )
        origins = request.headers.getall(hdrs.ORIGIN, [])
        if any(urlsplit(each).netloc.lower() != host.lower() for each in origins):
            raise web.HTTPForbidden(text="this page answers no requests of other pages\n")

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header names this machine."""
        name = (host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host).strip("[]").lower()
        if addresses.is_loopback(self._listen):
            return addresses.is_loopback(f"[{name}]:0")
        own = (self._listen, self._address())
        if name in ("localhost", socket.gethostname().lower(), *(_host_of(each) for each in own)):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # no name, which DNS could give another meaning


def is_allowed(access: Access, point: Point, request: web.Request) -> bool:
    """Whether a caller that was let in would be let in now: its token may have been revoked."""
    try:
        _check_caller(access, point, request)
    except web.HTTPException:
        return False
    return True


def _check_caller(access: Access, point: Point, request: web.Request) -> None:
    try:
        sent = request.headers.getall(hdrs.AUTHORIZATION, [])
        identity = access.identify(sent, _names(request), point.name)
        access.check(identity, point)
    except UnauthenticatedError as error:
        # A browser asks for a name and a password: the token is the password.
        asks = {hdrs.WWW_AUTHENTICATE: 'Basic realm="name and token", charset="UTF-8", Bearer'}
        raise web.HTTPUnauthorized(text=f"{error}\n", headers=asks) from None
    except PermissionDeniedError as error:
        raise web.HTTPForbidden(text=f"{error}\n") from None


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]").lower()


def _shown(host: str) -> str:
    return repr(host[:80]) if host else "what the request says"


def _names(request: web.Request) -> list[str]:
    """The names in the certificate of the caller, if it has one that was checked."""
    connection: Any = None if request.transport is None else request.transport.get_extra_info("ssl_object")
    shown: Any = connection.getpeercert() if connection is not None else None
    if not shown:
        return []
    subject = [value for part in shown.get("subject", ()) for key, value in part if key == "commonName"]
    return [*subject, *(value for _, value in shown.get("subjectAltName", ()))]
