"""The budget in bytes of unary requests and their answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ps_wire.errors import OverloadedError
from ps_wire.limits import SMALL_BYTES

if TYPE_CHECKING:
    import grpc

    from ps_service.engine import Engine
    from ps_service.requests.operations import Operation
    from ps_service.sessions.reply_cache import Answer

UNNAMED: Final = b""
"""The trainer id of callers that give none: they count, and take turns, as one trainer."""


class UnaryBudget:
    """Counts the bytes of unary requests that run, and of answers that are being sent."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Bytes of large answers that are being sent, by trainer.
        self._unsent: Counter[bytes] = Counter()

    @contextmanager
    def counted(self, of: bytes, operation: Operation, request: Any) -> Iterator[None]:
        """Counts a request for its trainer while the block runs. Raises `OverloadedError` if there is no space."""
        budget, limits = self._engine.budget, self._engine.limits
        if operation.large and self._unsent[of] >= limits.max_session_bytes:
            budget.refusals += 1
            raise OverloadedError(
                f"answers of {self._unsent[of]:,} bytes are on their way to this trainer: take them, or raise "
                "max_session_bytes on the owner"
            )
        nbytes = request.ByteSize()
        if nbytes <= SMALL_BYTES:
            yield
            return
        # A trainer without a session has no holding of its own.
        holding = budget.of(of if self._engine.sessions.get(of) is not None else UNNAMED)
        if not budget.admits(holding, nbytes, nested=False):
            raise budget.refused(holding, nbytes, nested=False)
        budget.take(holding, nbytes)
        try:
            yield
        finally:
            budget.release(holding, nbytes)

    def count_answer(self, of: bytes, result: Answer, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Counts a large answer until it has been sent, or its caller has gone."""
        nbytes = result.reply.ByteSize()
        if nbytes <= SMALL_BYTES:
            return
        self._unsent[of] += nbytes
        self._engine.budget.unsent += nbytes

        def sent(_: Any) -> None:
            self._engine.budget.unsent -= nbytes
            self._unsent[of] -= nbytes
            if not self._unsent[of]:
                del self._unsent[of]

        context.add_done_callback(sent)
