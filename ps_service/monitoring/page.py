"""The page of the group: its HTML, its files, and its messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web
from jinja2 import Environment, PackageLoader, StrictUndefined

from ps_service.monitoring import page_formats, page_messages, page_values
from ps_service.monitoring.group_watch import GroupWatch
from ps_service.monitoring.http_access import is_allowed
from ps_service.monitoring.page_feed import PageFeed
from ps_service.monitoring.page_numbers import described, lists
from ps_service.monitoring.paths import PATHS
from ps_wire.release import RELEASE

if TYPE_CHECKING:
    from ps_service.engine import Engine

_FIRST_SECONDS: Final = 0.5
"""How long the page waits for owners that have not answered yet. Those who take longer are shown as asked."""

_STATUS_SECONDS: Final = 2.0
"""The same for /status.json, whose reader gets one answer only."""

_SHOWN_WITHOUT_SCRIPTS: Final = 100
"""Rows of each list in the HTML itself."""

_KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)

_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Page:
    """Answers GET `/`, `/messages`, `/status.json`, `/values.json`, `/values.csv` and `/static/…`. It is read-only."""

    def __init__(self, engine: Engine, address: Callable[[], str]) -> None:
        self._engine = engine
        self._address = address
        self.watch = GroupWatch(engine, address)
        self.feed = PageFeed(self.watch, partial(is_allowed, engine.access, PATHS["/messages"]))
        self._files = _static()
        environment = Environment(
            loader=PackageLoader("ps_service.monitoring", "page_files/templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(page_formats.FILTERS)
        self._template = environment.get_template("page.html")

    def add_to(self, application: web.Application) -> None:
        """Adds its routes, and what ends its streams before the server closes its connections."""
        for path, handler in (
            ("/", self._page),
            ("/messages", self._messages),
            ("/status.json", self._status),
            ("/values.json", self._values),
            ("/values.csv", self._values_file),
        ):
            application.router.add_get(path, handler, allow_head=handler != self._messages)
        application.router.add_get("/static/{name}", self._static_file)
        application.on_shutdown.append(self._stop)

    async def _stop(self, _: web.Application) -> None:
        await self.feed.stop()
        await self.watch.stop()

    async def _page(self, _: web.Request) -> web.Response:
        await self.watch.wanted(_FIRST_SECONDS)
        group, most = described(self.watch), _SHOWN_WITHOUT_SCRIPTS
        html = self._template.render(
            name=self._engine.name,
            release=RELEASE,
            address=self._address(),
            group=group | {"lists": lists(group, most) | {"values": page_values.listed(self.watch, most)}},
            now=time.time(),
        )
        return web.Response(text=html, content_type="text/html", headers=_HEADERS)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        return await self.feed.serve(request, _HEADERS)

    async def _status(self, _: web.Request) -> web.Response:
        await self.watch.wanted(_STATUS_SECONDS)
        told = described(self.watch)
        return web.json_response(text=page_messages.dumped(told) + "\n", headers=_HEADERS)

    async def _values(self, _: web.Request) -> web.Response:
        await self.watch.wanted(_STATUS_SECONDS)
        told = page_values.described(self.watch)
        return web.json_response(text=page_messages.dumped(told) + "\n", headers=_HEADERS)

    async def _values_file(self, _: web.Request) -> web.Response:
        await self.watch.wanted(_STATUS_SECONDS)
        text = page_values.exported(self.watch)
        headers = {**_HEADERS, hdrs.CONTENT_DISPOSITION: 'attachment; filename="values.csv"'}
        return web.Response(text=text, content_type="text/csv", headers=headers)

    async def _static_file(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        kind, body, tag = found
        headers = {**_HEADERS, "Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get(hdrs.IF_NONE_MATCH) == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)


def _static() -> dict[str, tuple[str, bytes, str]]:
    """The files that the page loads, by name: kind, content and tag. There are few, and no path leads elsewhere."""
    found: dict[str, tuple[str, bytes, str]] = {}
    for folder in ("static", "uplot"):
        for each in files("ps_service.monitoring").joinpath("page_files", folder).iterdir():
            kind = _KINDS.get(each.name[each.name.rfind(".") :])
            if kind is not None:
                body = each.read_bytes()
                found[each.name] = (kind, body, f'"{sha256(body).hexdigest()[:16]}"')
    return found
