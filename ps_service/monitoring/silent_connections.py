"""Closes HTTP connections on which no whole request arrives, which aiohttp keeps forever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import web

from ps_service.execution.periodic import Periodic

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler
    from aiohttp.web_protocol import RequestHandler

SECONDS: Final = 10.0
"""A connection without a request is closed after once to twice this time."""


class SilentConnections:
    """Looks at the connections of a server from time to time. One that has made a request is left to aiohttp, which
    closes it if no other one follows."""

    def __init__(self) -> None:
        self._asked: set[RequestHandler] = set()
        self._silent: set[RequestHandler] = set()
        self._server: web.Server | None = None
        self._looking = Periodic(SECONDS, self._look, "the search for HTTP connections without requests")

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A middleware that notes which connection has made a request."""
        self._asked.add(request.protocol)
        return await handler(request)

    def begin(self, server: web.Server | None) -> None:
        """Starts to look at the connections of a server."""
        self._server = server
        self._looking.begin()

    async def end(self) -> None:
        """Stops to look. Calling it again does nothing."""
        await self._looking.end()

    def _look(self) -> None:
        assert self._server is not None
        present = set(self._server.connections)
        self._asked &= present
        for each in self._silent & present - self._asked:
            each.force_close()
        self._silent = present - self._asked - self._silent
