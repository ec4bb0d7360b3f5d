"""The pushes of a replica in their order, and those that are under way while the next forward runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ps_wire.errors import InvalidArgumentError, PsError
from ps_wire.runtime.failures import Failure
from ps_wire.runtime.noop import noop
from trainer_client.pending import Pending, when_all_done

if TYPE_CHECKING:
    from trainer_client.replicas.protocols import Push
    from trainer_client.session.stepped import Stepped


class Overlap:
    """Keeps the latest pushes, of which at most `most` are under way, and returns the one before them. Owners may run
    requests that come together in any order, so a push is sent when the one before has ended, well or not."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        if type(most) is not int or most < 0:
            raise InvalidArgumentError(f"overlap is a number of pushes, not {most!r}")
        self.loop = loop
        self.most = most
        self._in_flight: deque[Pending[Stepped | None]] = deque()
        # Done when the latest push and all before it have ended.
        self._turn: Pending[None] | None = None

    def push(self, push: Push) -> Pending[Stepped | None]:
        """Makes a push in its turn; gives the outcome to wait for now, or None if there is none. Cancelling it cancels
        the push that is made here, not the earlier one whose outcome it is, which can be waited for again."""
        before, turn = self._turn, Pending[None](self.loop)
        if before is None or before.settled:
            try:
                pending = push.send()
            except BaseException:
                push.withdraw()
                raise
            pending.on_done(partial(turn.resolve, noop))
        else:
            pending = self._later(before, turn, push)
        self._turn = turn
        self._in_flight.append(pending)
        if len(self._in_flight) <= self.most:
            return self.nothing()
        earlier = self._in_flight.popleft()
        if earlier is pending:
            return pending
        shown: Pending[Stepped | None] = Pending(self.loop, partial(self._cancel, pending, earlier))
        earlier.on_done(lambda: shown.resolve(earlier.result))
        return shown

    def _cancel(self, pending: Pending[Stepped | None], earlier: Pending[Stepped | None]) -> None:
        """Cancels a push that was about to wait for an earlier one, whose outcome nobody has."""
        pending.cancel()
        with suppress(ValueError):
            self._in_flight.remove(pending)
        self._in_flight.appendleft(earlier)

    def _later(self, before: Pending[None], turn: Pending[None], push: Push) -> Pending[Stepped | None]:
        """Sends once the pushes before have ended. Resolves `turn` when this one has ended, too."""
        sent: list[Pending[Any]] = []

        def begin() -> None:
            if done.settled:
                turn.resolve(noop)  # it was cancelled
                return
            try:
                pending = push.send()
            except BaseException as error:
                push.withdraw()
                done.resolve(Failure(error))
                turn.resolve(noop)
                return
            sent.append(pending)
            pending.on_done(lambda: done.resolve(pending.result))
            pending.on_done(partial(turn.resolve, noop))
            if done.settled:
                pending.cancel()  # it was cancelled by another thread meanwhile

        def cancel() -> None:
            if not sent:
                push.withdraw()
            for each in sent:
                each.cancel()

        done: Pending[Stepped | None] = Pending(self.loop, cancel)
        before.on_done(begin)
        return done

    def nothing(self) -> Pending[Stepped | None]:
        """What becomes of a push that was not made."""
        made: Pending[Stepped | None] = Pending(self.loop)
        made.resolve(noop)
        return made

    def finish(self) -> Pending[list[Stepped | None]]:
        """Waits for all of them. The result has what became of each; or it is the first error, once all have ended.
        Cancelling it cancels none of them: they can be waited for again."""
        waiting = list(self._in_flight)
        self._in_flight.clear()
        done: Pending[list[Stepped | None]] = Pending(self.loop, lambda: self._in_flight.extendleft(reversed(waiting)))
        when_all_done(iter(waiting), lambda: done.resolve(partial(_outcomes, waiting)))
        return done


def _outcomes(waiting: Sequence[Pending[Stepped | None]]) -> list[Stepped | None]:
    results, failed = [], None
    for each in waiting:
        try:
            results.append(each.result())
        except PsError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return results
