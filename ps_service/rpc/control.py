"""Control: what administration needs of conversations and unary methods together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ps_service.engine.administration import Running
from ps_service.rpc.conversations import Conversations
from ps_service.rpc.unary import UnaryMethods
from ps_service.state.sessions import Session


class RequestControl:
    """Looks at the requests of all sessions, and ends sessions.

    Args:
        conversations: Requests that come on streams.
        unary: Requests that come one at a time.
    """

    def __init__(self, conversations: Conversations, unary: UnaryMethods) -> None:
        self._conversations = conversations
        self._unary = unary

    def running(self) -> Iterator[Running]:
        """The requests that have no answer yet."""
        return chain(self._conversations.running(), self._unary.running())

    def end(self, session: Session) -> None:
        """Ends a session's stream, cancels its requests, and frees everything it held.

        Raises:
            Exception: Something could not be freed in good order; all the rest was.
        """
        try:
            self._unary.cancel(session.trainer)
        finally:
            self._conversations.dismiss(session)
