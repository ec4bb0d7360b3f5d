"""The log of the HTTP server: one line for a request that cannot be answered."""

from __future__ import annotations

import logging
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_MOST: Final = 200
"""Characters of what was wrong with a request that are logged."""


_MOST_ALIKE: Final = 256
"""Requests that are told apart."""


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
            text = f"a bad HTTP request{''.join(f' from {each}' for each in args)}: {reason[:_MOST]}"
            # A trainer that was given this port comes again and again.
            count = self._counts[text] = self._counts.pop(text, 0) + 1
            if len(self._counts) > _MOST_ALIKE:
                del self._counts[next(iter(self._counts))]
            if count == 1 or str(count).strip("0") == "1":
                self.warning("%s%s", text, f" ({count:,} times)" if count > 1 else "")
        else:
            super().exception(msg, *args, exc_info=exc_info, **kwargs)
