"""Sends messages to open pages as server-sent events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from aiohttp import web

MOST_STREAMS: Final = 16
"""Most pages that are open at once."""

MOST_WAITING_BYTES: Final = 8 << 20
"""Bytes of messages that may wait for one page. One that reads more slowly is cut off, and connects again by itself."""

_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "X-Accel-Buffering": "no",  # asks a proxy not to hold messages back
}


def event(data: str) -> bytes:
    """A message.

    Args:
        data: Text without line breaks, such as JSON.
    """
    return f"data: {data}\n\n".encode()


class PageStream:
    """The messages to one page.

    Args:
        cut_off: Breaks its connection.
    """

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
        """Sends messages until the stream ends.

        Raises:
            ConnectionError: The page was closed, or cut off.
        """
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


class PageStreams:
    """All open pages. Used on the event loop."""

    def __init__(self) -> None:
        self._streams: set[PageStream] = set()

    def __len__(self) -> int:
        return len(self._streams)

    def send(self, message: bytes) -> None:
        """Sends a message to all pages."""
        for each in list(self._streams):
            each.send(message)

    def end(self) -> None:
        """Ends all streams."""
        for each in list(self._streams):
            each.end()

    async def serve(
        self, request: web.Request, headers: Mapping[str, str], first: Iterable[bytes]
    ) -> web.StreamResponse:
        """Serves one page until it is closed.

        Args:
            request: Its request.
            headers: What the response carries beside its kind.
            first: The messages to begin with.

        Raises:
            web.HTTPServiceUnavailable: Too many pages are open.
        """
        transport = request.transport
        if len(self._streams) >= MOST_STREAMS or transport is None:
            raise web.HTTPServiceUnavailable(
                text=f"{MOST_STREAMS} pages are open already; close one\n", headers={"Retry-After": "5"}
            )
        response = web.StreamResponse(headers={**headers, **_HEADERS})
        stream = PageStream(transport.abort)
        self._streams.add(stream)
        try:
            with suppress(ConnectionError):
                await response.prepare(request)
                for message in first:
                    # Not through the stream: it is no slow page that has to load the history first.
                    await response.write(message)
                await stream.write(response)
        finally:
            self._streams.discard(stream)
        return response
