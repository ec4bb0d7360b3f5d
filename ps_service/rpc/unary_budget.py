"""The budget in bytes of unary requests and their answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ps_service.quotas.accounts import Account
from ps_wire.errors import OverloadedError
from ps_wire.limits import SMALL_BYTES

if TYPE_CHECKING:
    import grpc

    from ps_service.access.identities import Asker
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

    def key_of(self, trainer: bytes, asker: Asker | None) -> bytes:
        """What the requests of a caller count for: its session, or its identity as long as it has none: anybody can
        make up ids. All without either count as one."""
        if self._engine.sessions.has(trainer):
            return trainer
        return UNNAMED if asker is None else f"identity {asker.namespace} {asker.identity.name}".encode()

    @contextmanager
    def counted(self, of: bytes, asker: Asker | None, operation: Operation, request: Any) -> Iterator[None]:
        """Counts a request for its key while the block runs. Raises `OverloadedError` if there is no space."""
        budget = self._engine.budget
        if operation.large:
            self._check_unsent(of, 0)
        nbytes = request.ByteSize()
        if nbytes <= SMALL_BYTES:
            yield
            return
        holding = budget.of(of)
        if asker is not None and self._engine.quotas.is_on and not (holding.requests or self._engine.sessions.has(of)):
            holding.groups = self._engine.quotas.tallies(Account(asker.identity.name, asker.namespace))
        if not budget.admits(holding, nbytes, nested=False):
            raise budget.refused(holding, nbytes, nested=False)
        budget.take(holding, nbytes)
        try:
            yield
        finally:
            budget.release(holding, nbytes)

    def count_answer(self, of: bytes, result: Answer, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Counts a large answer until it has been sent, or its caller has gone. Raises `OverloadedError` if there is no
        space for it beside others, which were made at the same time."""
        nbytes = result.reply.ByteSize()
        if nbytes <= SMALL_BYTES:
            return
        self._check_unsent(of, nbytes)
        self._unsent[of] += nbytes
        self._engine.budget.unsent += nbytes

        def sent(_: Any) -> None:
            self._engine.budget.unsent -= nbytes
            self._unsent[of] -= nbytes
            if not self._unsent[of]:
                del self._unsent[of]

        context.add_done_callback(sent)

    def _check_unsent(self, of: bytes, more: int) -> None:
        budget, limits, unsent = self._engine.budget, self._engine.limits, self._unsent[of]
        if not unsent:
            del self._unsent[of]  # the first may have any allowed size
            return
        if unsent + more >= limits.max_session_bytes or budget.unsent + more >= limits.max_owner_bytes:
            budget.refusals += 1
            what = f", and this one of {more:,} has no space beside them" if more else ""
            raise OverloadedError(
                f"answers of {unsent:,} bytes are on their way to this trainer{what}: take them, or raise "
                "max_session_bytes on the owner"
            )
