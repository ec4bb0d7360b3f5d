"""Tells open pages every second what is new in the group, as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiohttp import web

from ps_service.metrics.history import SAMPLE_SECONDS
from ps_service.monitoring import page_messages
from ps_wire.runtime import tasks

if TYPE_CHECKING:
    from ps_service.monitoring.group_watch import GroupWatch
    from ps_service.monitoring.watched_owner import WatchedOwner
    from ps_wire.v1.operations_pb2 import StatusReply

_log = logging.getLogger(__name__)

_FIRST_SECONDS: Final = 1.0
"""How long a new page waits for the first answers of the other owners."""

MOST_STREAMS: Final = 16
"""Most pages that are open at once."""

MOST_WAITING_BYTES: Final = 8 << 20
"""Bytes of messages that may wait for one page. One that reads more slowly is cut off, and connects again by itself."""

_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "X-Accel-Buffering": "no",  # asks a proxy not to hold messages back
}


class Known(NamedTuple):
    """What pages know of an owner: its start, the numbers of its last sample and event, its status, and its curves."""

    incarnation: str = ""
    sample: int = 0
    event: int = 0
    status: StatusReply | None = None
    curves: page_messages.KnownCurves = page_messages.NO_CURVES


_NOTHING: Final = Known()


def _event(data: str) -> bytes:
    """A message with text that has no line breaks, such as JSON."""
    return f"data: {data}\n\n".encode()


class PageStream:
    """The messages to one page. `cut_off` breaks its connection. It ends soon when it is not allowed any more."""

    def __init__(self, cut_off: Callable[[], object], is_allowed: Callable[[], bool]) -> None:
        self.is_allowed = is_allowed
        self._cut_off = cut_off
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()  # an empty message is the end
        self._bytes = 0
        self._over = False

    def send(self, message: bytes) -> None:
        """Adds a message; cuts the page off if it does not read."""
        if self._over:
            return
        if self._bytes and self._bytes + len(message) > MOST_WAITING_BYTES:
            self.end()
            self._cut_off()
            return
        self._bytes += len(message)
        self._waiting.put_nowait(message)

    def end(self) -> None:
        """Ends the stream when the messages that wait are sent. Cuts the page off if it was to end before."""
        if self._over:
            self._cut_off()
            return
        self._over = True
        self._waiting.put_nowait(b"")

    async def write(self, response: web.StreamResponse) -> None:
        """Sends messages until the stream ends. Raises `ConnectionError` if the page was closed, or cut off."""
        while message := await self._waiting.get():
            await response.write(message)
            # Not before: what a slow page has not taken counts as waiting.
            self._bytes -= len(message)


class PageFeed:
    """The open pages, and what they have been told already; those that are not allowed any more are closed. Used on the
    event loop."""

    def __init__(self, watch: GroupWatch, is_allowed: Callable[[web.Request], bool]) -> None:
        self._is_allowed = is_allowed
        self.streams: set[PageStream] = set()
        self._watch = watch
        self._task: asyncio.Task[None] | None = None
        self._told: dict[str, Known] = {}

    async def serve(self, request: web.Request, headers: Mapping[str, str]) -> web.StreamResponse:
        """Serves one page until it is closed. Raises `web.HTTPServiceUnavailable` if too many are open."""
        await self._watch.wanted(_FIRST_SECONDS)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        transport = request.transport
        if len(self.streams) >= MOST_STREAMS or transport is None:
            raise web.HTTPServiceUnavailable(
                text=f"{MOST_STREAMS} pages are open already; close one\n", headers={"Retry-After": "5"}
            )
        response = web.StreamResponse(headers={**headers, **_HEADERS})
        stream = PageStream(transport.abort, partial(self._is_allowed, request))
        self.streams.add(stream)
        try:
            with suppress(ConnectionError):
                await response.prepare(request)
                for message in self._everything():
                    # Not through the stream: it is no slow page that has to load the history first.
                    await response.write(message)
                await stream.write(response)
        finally:
            self.streams.discard(stream)
        return response

    def send(self, message: bytes) -> None:
        """Sends a message to all pages."""
        for each in self.streams:
            each.send(message)

    async def stop(self) -> None:
        """Ends all streams, and tells nothing any more."""
        for each in self.streams:
            each.end()
        if self._task is not None:
            await tasks.end(self._task)

    def _everything(self) -> Iterator[bytes]:
        """The messages of a page that has just opened, one for each owner, so that none is long."""
        yield _event(page_messages.joined(page_messages.of_group(self._watch) | self._slow()))
        for owner in list(self._watch.owners.values()):
            yield _event(page_messages.joined(_fresh([owner], {})))
        yield _event('{"complete":true}')

    async def _run(self) -> None:
        self._told = {name: _known(owner) for name, owner in self._watch.owners.items()}
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            if not self.streams:
                return
            for each in self.streams:
                if not each.is_allowed():
                    each.end()
            self._watch.want()
            try:
                self.send(_event(self._news()))
            except Exception:
                _log.exception("the open pages could not be told what is new; it will be tried again")

    def _news(self) -> str:
        fresh = _fresh(self._watch.owners.values(), self._told)
        self._told = {name: _known(owner) for name, owner in self._watch.owners.items()}
        slow = self._slow() if "lists" in fresh else {}
        return page_messages.joined(page_messages.of_group(self._watch) | slow | fresh)

    def _slow(self) -> dict[str, str]:
        return {"slow": page_messages.dumped(self._watch.slow.why)}


def _fresh(owners: Iterable[WatchedOwner], known: Mapping[str, Known]) -> dict[str, str]:
    """What pages do not know of some owners yet, by fields of a message, in JSON."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for owner in owners:
        of, now = known.get(owner.name, _NOTHING), _known(owner)
        if of.incarnation != now.incarnation:
            of = Known(status=of.status)
        if samples := [each.encoded for each in owner.samples if each.message.number > of.sample]:
            found["samples"][owner.name] = f"[{','.join(samples)}]"
        if events := [page_messages.plain(each) for each in owner.events if each.number > of.event]:
            found["events"][owner.name] = page_messages.dumped(events)
        if owner.status is not None and owner.status is not of.status:
            found["lists"][owner.name] = page_messages.dumped(page_messages.lists(owner.status))
        if now.curves != of.curves:
            found["curves"][owner.name] = page_messages.dumped(page_messages.curves(owner, of.curves))
    return {field: page_messages.joined(told) for field, told in found.items()}


def _known(owner: WatchedOwner) -> Known:
    incarnation = "" if owner.facts is None else owner.facts.incarnation
    curves = page_messages.KnownCurves.of(owner)
    return Known(incarnation, owner.last_number, owner.last_event, owner.status, curves)
