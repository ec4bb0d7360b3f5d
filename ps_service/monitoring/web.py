"""The HTTP server for the page of the group, and for an owner's metrics and health."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.aiohttp import make_aiohttp_handler
from prometheus_client.exposition import choose_encoder

from ps_service import addresses
from ps_service.monitoring import exporter
from ps_service.monitoring.http_access import HttpAccess
from ps_service.monitoring.page import Page
from ps_service.monitoring.silent_connections import SilentConnections
from ps_wire.release import RELEASE

if TYPE_CHECKING:
    import ssl

    from ps_service.engine import Engine

_log = logging.getLogger(__name__)

_LAST_ANSWERS_SECONDS: Final = 1.0
"""Seconds that responses in progress may take when the owner stops."""

_LONGEST_REASON: Final = 200
"""Characters of what was wrong with a request that are logged."""

_MOST_ALIKE: Final = 256
"""Bad requests that are told apart in the log."""


def _line(told: Any) -> str:
    """JSON that ends with a newline, for reading with curl."""
    return json.dumps(told) + "\n"


class Web:
    """Answers GET for the page at `/`, /status.json, /metrics, /healthz and /readyz, on the owner's event loop."""

    def __init__(
        self, engine: Engine, listen: str, state: Callable[[], str], address: Callable[[], str] = lambda: ""
    ) -> None:
        self._engine = engine
        self._told = {"owner": engine.name, "version": RELEASE}
        self._listen = listen
        self._state = state
        self._began = time.monotonic()
        self._silent = SilentConnections()
        application = web.Application(middlewares=[self._silent.note, HttpAccess(engine.access, listen, address).check])
        self._exposed = make_aiohttp_handler(exporter.registry(engine))
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._health)
        application.router.add_get("/readyz", self._ready)
        self.page = Page(engine, address)
        self.page.add_to(application)
        self._runner = web.AppRunner(
            application, access_log=None, logger=WebLog(), shutdown_timeout=_LAST_ANSWERS_SECONDS
        )
        self._port = 0

    @property
    def address(self) -> str:
        """Host and port that it listens on."""
        return f"{self._listen.rpartition(':')[0]}:{self._port}"

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        """Begins to listen; with a context, over TLS. Raises `OSError` if the address cannot be bound."""
        try:
            listener = addresses.bound(self._listen)
        except OSError as error:
            raise OSError(f"metrics (--http): {error}") from error
        self._port = listener.getsockname()[1]
        await self._runner.setup()
        await web.SockSite(self._runner, listener, ssl_context=context).start()
        self._silent.begin(self._runner.server)

    async def stop(self) -> None:
        """Ends every connection. Calling it again does nothing."""
        await self._silent.end()
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        accepted = ",".join(request.headers.getall(hdrs.ACCEPT, []))
        try:
            choose_encoder(accepted)
        except (TypeError, ValueError):
            _log.warning("a request for /metrics from %s accepts what cannot be read: %r", request.remote, accepted)
            raise web.HTTPBadRequest(text="the Accept header names a version that is none\n") from None
        return await self._exposed(request)

    async def _health(self, _: web.Request) -> web.Response:
        state, log = self._state(), self._engine.durability.log
        told = {**self._told, "state": state, "uptime_seconds": round(time.monotonic() - self._began, 3)}
        if log is not None:
            told |= {"log": log.state, **({"why": log.why} if log.why else {})}
        # A start cures a log that has failed, and no full disk. Load balancers look at the status code only.
        is_well = state == "serving" and (log is None or log.state != "failed")
        return web.json_response(told, status=200 if is_well else 503, dumps=_line)

    async def _ready(self, _: web.Request) -> web.Response:
        state, member = self._state(), not self._engine.membership.awaited
        ready = state == "serving" and member
        told = {"owner": self._told["owner"], "ready": ready, "state": state, "joined_its_group": member}
        return web.json_response(told, status=200 if ready else 503, dumps=_line)


class WebLog(logging.LoggerAdapter[logging.Logger]):
    """Logs what was wrong with a request in one line. An error of the owner itself keeps its traceback."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger(__name__))
        self._counts: dict[str, int] = {}

    def exception(self, msg: object, *args: object, exc_info: Any = True, **kwargs: Any) -> None:
        """Logs an error that has ended a request."""
        if isinstance(exc_info, (HttpProcessingError, web.RequestPayloadError)):
            reason = " ".join(str(exc_info).split())
            # aiohttp gives the address of the client, if anything.
            text = f"a bad HTTP request{''.join(f' from {each}' for each in args)}: {reason[:_LONGEST_REASON]}"
            # A trainer that was given this port comes again and again.
            count = self._counts[text] = self._counts.pop(text, 0) + 1
            if len(self._counts) > _MOST_ALIKE:
                del self._counts[next(iter(self._counts))]
            if str(count).strip("0") == "1":
                self.warning("%s%s", text, f" ({count:,} times)" if count > 1 else "")
        else:
            super().exception(msg, *args, exc_info=exc_info, **kwargs)
