"""Tells open pages every second what is new in the group, as server-sent events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

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


def _event(data: str) -> bytes:
    """A message with text that has no line breaks, such as JSON."""
    return f"data: {data}\n\n".encode()


class PageStream:
    """The messages to one page. `cut_off` breaks its connection."""

    def __init__(self, cut_off: Callable[[], object]) -> None:
        self._cut_off = cut_off
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._over = False

    def send(self, message: bytes) -> None:
        """Adds a message; cuts the page off if it does not read."""
        if self._over:
            return
        if self._bytes and self._bytes + len(message) > MOST_WAITING_BYTES:
            self._waiting.clear()
            self.end()
            self._cut_off()
            return
        self._bytes += len(message)
        self._waiting.append(message)
        self._news.set()

    def end(self) -> None:
        """Ends the stream when the messages that wait are sent."""
        self._over = True
        self._news.set()

    async def write(self, response: web.StreamResponse) -> None:
        """Sends messages until the stream ends. Raises `ConnectionError` if the page was closed, or cut off."""
        while True:
            while self._waiting:
                message = self._waiting.popleft()
                await response.write(message)
                # Not before: what a slow page has not taken counts as waiting.
                self._bytes -= len(message)
            if self._over:
                return
            self._news.clear()
            await self._news.wait()


class PageFeed:
    """The open pages, and what they have been told already. Used on the event loop."""

    def __init__(self, watch: GroupWatch) -> None:
        self.streams: set[PageStream] = set()
        self._watch = watch
        self._task: asyncio.Task[None] | None = None
        # Of each owner: the incarnation, the numbers of its last sample and event, and the status, that pages know.
        self._told: dict[str, tuple[str, int, int, StatusReply | None]] = {}

    async def serve(self, request: web.Request, headers: Mapping[str, str]) -> web.StreamResponse:
        """Serves one page until it is closed. Raises `web.HTTPServiceUnavailable` if too many are open."""
        self._watch.want()
        await self._watch.first_answers(_FIRST_SECONDS)
        if self._task is None or self._task.done():
            self._told.clear()
            self._task = asyncio.create_task(self._run())
        transport = request.transport
        if len(self.streams) >= MOST_STREAMS or transport is None:
            raise web.HTTPServiceUnavailable(
                text=f"{MOST_STREAMS} pages are open already; close one\n", headers={"Retry-After": "5"}
            )
        response = web.StreamResponse(headers={**headers, **_HEADERS})
        stream = PageStream(transport.abort)
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
        for each in list(self.streams):
            each.send(message)

    def end(self) -> None:
        """Ends all streams."""
        for each in list(self.streams):
            each.end()

    async def stop(self) -> None:
        """Ends all streams, and tells nothing any more."""
        self.end()
        if self._task is not None:
            await tasks.end(self._task)

    def _everything(self) -> Iterator[bytes]:
        """The messages of a page that has just opened, one for each owner, so that none is long."""
        watch = self._watch
        yield _event(f'{{"now":{time.time():.3f},{page_messages.owners(watch)},{page_messages.slow(watch)}}}')
        for owner in list(watch.owners.values()):
            parts = [
                f'"samples":{{{page_messages.samples(owner.name, owner.samples)}}}',
                f'"events":{{{page_messages.events(owner.name, owner.events)}}}',
            ]
            if owner.status is not None:
                parts.append(f'"lists":{{{_lists(owner.name, owner.status)}}}')
            yield _event("{" + ",".join(parts) + "}")
        yield _event('{"complete":true}')

    async def _run(self) -> None:
        for owner in self._watch.owners.values():
            self._told[owner.name] = _known(owner)
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            if not self.streams:
                return
            self._watch.want()
            try:
                self.send(_event(self._news()))
            except Exception:
                _log.exception("the open pages could not be told what is new; it will be tried again")

    def _news(self) -> str:
        samples, lists, events = [], [], []
        for owner in self._watch.owners.values():
            incarnation, number, last_event, status = self._told.get(owner.name, ("", 0, 0, None))
            known = self._told[owner.name] = _known(owner)
            if incarnation != known[0]:
                number = last_event = 0
            fresh = [each for each in owner.samples if each.number > number]
            if fresh:
                samples.append(page_messages.samples(owner.name, fresh))
            happened = [each for each in owner.events if each.number > last_event]
            if happened:
                events.append(page_messages.events(owner.name, happened))
            if owner.status is not None and owner.status is not status:
                lists.append(_lists(owner.name, owner.status))
        parts = [f'"now":{time.time():.3f}', page_messages.owners(self._watch)]
        if lists:
            parts.append(page_messages.slow(self._watch))
        for name, found in (("samples", samples), ("lists", lists), ("events", events)):
            if found:
                parts.append(f'"{name}":{{{",".join(found)}}}')
        return "{" + ",".join(parts) + "}"


def _lists(name: str, status: StatusReply) -> str:
    return f"{page_messages.dumped(name)}:{page_messages.dumped(page_messages.lists(status))}"


def _known(owner: WatchedOwner) -> tuple[str, int, int, StatusReply | None]:
    incarnation = "" if owner.facts is None else owner.facts.incarnation
    return incarnation, owner.last_number, owner.last_event, owner.status
