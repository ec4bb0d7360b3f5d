"""Has the requests of a stream wait, and refuses some, as the quotas of its session say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.memory.message_budget import LONGEST_PAUSE_SECONDS
from ps_wire.errors import QuotaError

if TYPE_CHECKING:
    from ps_service.quotas.quotas import Quotas
    from ps_service.sessions.sessions import SessionState
    from ps_wire.connections.assembler import Message


class RateLimiting:
    """Counts the requests of one session. Used on the event loop.

    While one waits, no other is read from its stream. Those of one identity wait in the order in which they have come,
    on whatever stream.
    """

    def __init__(self, quotas: Quotas, session: SessionState) -> None:
        self._quotas = quotas
        self._session = session

    def admit(self, message: Message) -> tuple[Message, float]:
        """A message, with an error if it is refused, and for how many seconds it has to wait."""
        if not message.frame.HasField("request") or message.error is not None:
            return message, 0.0
        request = message.frame.request
        patience = LONGEST_PAUSE_SECONDS
        if 0.0 < request.timeout_seconds < patience:
            patience = request.timeout_seconds
        try:
            return message, self._quotas.admit_call(self._session.account, request.depth, patience)
        except QuotaError as error:
            return message._replace(payload=None, error=error), 0.0
