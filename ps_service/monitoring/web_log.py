"""The log of the HTTP server: one line for a request that cannot be answered."""

from __future__ import annotations

import logging
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_MOST: Final = 200
"""Characters of what was wrong with a request that are logged."""


class WebLog(logging.LoggerAdapter[logging.Logger]):
    """Logs what was wrong with a request in one line. An error of the owner itself keeps its traceback."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger(__name__))

    def exception(self, msg: object, *args: object, exc_info: Any = True, **kwargs: Any) -> None:
        """Logs an error that has ended a request."""
        if isinstance(exc_info, (HttpProcessingError, web.RequestPayloadError)):
            reason = " ".join(str(exc_info).split())
            # aiohttp gives the address of the client, if anything.
            self.warning("a bad HTTP request%s: %s", "".join(f" from {each}" for each in args), reason[:_MOST])
        else:
            super().exception(msg, *args, exc_info=exc_info, **kwargs)
