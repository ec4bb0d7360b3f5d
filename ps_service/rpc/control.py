"""Control: what administration needs of session handlers and unary methods together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ps_service.rpc.session_handlers import SessionHandlers
    from ps_service.rpc.unary import UnaryMethods
    from ps_service.sessions.administration import Running
    from ps_service.sessions.sessions import SessionState


class RequestControl:
    """Looks at the requests of all sessions, and ends sessions.

    Args:
        session_handlers: Requests that come on streams.
        unary: Requests that come one at a time.
    """

    def __init__(self, session_handlers: SessionHandlers, unary: UnaryMethods) -> None:
        self._session_handlers = session_handlers
        self._unary = unary

    def running(self) -> Iterator[Running]:
        """The requests that have no answer yet."""
        return chain(self._session_handlers.running(), self._unary.running())

    def end(self, session: SessionState) -> None:
        """Ends a session's stream, cancels its requests, and frees everything it held.

        Raises:
            Exception: Something could not be freed in good order; all the rest was.
        """
        try:
            self._unary.cancel(session.trainer)
        finally:
            self._session_handlers.dismiss(session)
