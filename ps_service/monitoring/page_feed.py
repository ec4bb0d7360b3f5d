"""Tells open pages every second what is new in the group."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ps_service.metrics.history import SAMPLE_SECONDS
from ps_service.monitoring import page_messages
from ps_service.monitoring.page_streams import PageStreams, event

if TYPE_CHECKING:
    from aiohttp import web

    from ps_service.monitoring.group_watch import GroupWatch
    from ps_service.monitoring.watched_owner import WatchedOwner
    from ps_wire.v1.operations_pb2 import StatusReply

_log = logging.getLogger(__name__)

_FIRST_SECONDS: Final = 1.0
"""How long a new page waits for the first answers of the other owners."""


class PageFeed:
    """The open pages, and what they have been told already. Used on the event loop.

    Args:
        watch: Asks the owners.

    Attributes:
        streams: The open pages.
    """

    def __init__(self, watch: GroupWatch) -> None:
        self.streams = PageStreams()
        self._watch = watch
        self._task: asyncio.Task[None] | None = None
        # Of each owner: the incarnation, the numbers of its last sample and event, and the status, that pages know.
        self._told: dict[str, tuple[str, int, int, StatusReply | None]] = {}

    async def serve(self, request: web.Request, headers: Mapping[str, str]) -> web.StreamResponse:
        """Serves one page: all that is known, and then every second what is new.

        Args:
            request: Its request.
            headers: What the response carries beside its kind.
        """
        self._watch.want()
        await self._watch.first_answers(_FIRST_SECONDS)
        if self._task is None or self._task.done():
            self._told.clear()
            self._task = asyncio.create_task(self._run())
        return await self.streams.serve(request, headers, self._everything())

    async def stop(self) -> None:
        """Ends all streams."""
        self.streams.end()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def _everything(self) -> Iterator[bytes]:
        """The messages of a page that has just opened, one for each owner, so that none is long."""
        watch = self._watch
        yield event(f'{{"now":{time.time():.3f},{page_messages.owners(watch)},{page_messages.slow(watch)}}}')
        for owner in list(watch.owners.values()):
            parts = [
                f'"samples":{{{page_messages.samples(owner.name, owner.samples)}}}',
                f'"events":{{{page_messages.events(owner.name, owner.events)}}}',
            ]
            if owner.status is not None:
                parts.append(f'"lists":{{{_lists(owner.name, owner.status)}}}')
            yield event("{" + ",".join(parts) + "}")
        yield event('{"complete":true}')

    async def _run(self) -> None:
        for owner in self._watch.owners.values():
            self._told[owner.name] = _known(owner)
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            if not self.streams:
                return
            self._watch.want()
            try:
                self.streams.send(event(self._news()))
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
