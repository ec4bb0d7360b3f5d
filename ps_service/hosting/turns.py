"""The turns of the calls that run on a module itself, one at a time."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet

from ps_service.parameters import state
from ps_wire.runtime.scopes import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from ps_service.parameters.locks import ParameterLocks

FIRST_PATIENCE_SECONDS: Final = 30.0
"""How long others wait for the turn of a call that does not end, before one has ended."""

PATIENCE_SECONDS: Final = 2.0
"""How long others wait at least afterwards."""

_LONGER: Final = 4
"""They wait this many times as long as the longest call so far."""


class Turn:
    """The turn of one call. While the call waits for another process or a lock, others have the module.

    It is `nested` if the call has another module already, or is nested in another request: a step may be waiting for
    that one, so this one waits only for steps that have begun to write. `around` makes what is entered whenever the
    call gets the module, without waiting, and `exclusive` what is entered before that, if the call writes to parameters
    as a step does; `entered` has all of it. If it `is_patient`, it waits for a call that does not end for as long as
    that takes. It `is_lost` if others went on before the call had ended, and `is_ending` while it gives the module to
    others. `resumed` is called after others had the module.
    """

    def __init__(
        self,
        turns: Turns,
        nested: bool,
        around: Sequence[Callable[[], AbstractContextManager[None]]] = (),
        exclusive: Callable[[], AbstractContextManager[None]] | None = None,
        is_patient: bool = False,
    ) -> None:
        self.nested = nested
        self.is_patient = is_patient
        self.is_lost = self.is_ending = False
        self.resumed: Callable[[], None] | None = None
        # The turn of a call that this one is nested in, in the same thread.
        self.outer: Turn | None = None
        self.thread = threading.get_ident()
        self.began = 0.0
        self.writes = exclusive is not None
        self._turns = turns
        self._around = around
        self._exclusive = exclusive
        self.entered = ExitStack()
        self._is_paused = False

    def begin(self) -> None:
        """Waits until the call has the module. Raises `WouldBlock` if this thread must not wait."""
        self._take()
        waiting.held = (*waiting.held, self)

    def _take(self) -> None:
        outer = self._turns.holder
        try:
            # A call that it is nested in may write, and has excluded others already.
            is_mine = outer is not None and outer.writes and outer.thread == self.thread
            if self._exclusive is not None and not is_mine:
                self.entered.enter_context(self._exclusive())
            self._turns.take(self)
            for each in self._around:
                self.entered.enter_context(each())
        except BaseException:
            self._give()
            raise

    def _give(self) -> None:
        turns, lock = self._turns, self._turns.locks.lock
        with lock:
            self.is_ending = turns.holder is self  # from now on nobody takes the module from the call
        try:
            self.entered.close()
        finally:
            if self.is_ending:
                with lock:
                    turns.holder = self.outer
                    turns.locks.notify()

    def end(self) -> None:
        """The call has ended."""
        waiting.held = tuple(each for each in waiting.held if each is not self)
        self._turns.end(self)
        self._give()

    def pause(self) -> None:
        """Lets others have the module, because the call waits."""
        if not self._is_paused:
            self._is_paused = True
            self._give()

    def resume(self) -> None:
        """Waits until the call has the module again."""
        if self.is_lost or not self._is_paused:
            return
        self._is_paused = False
        self._take()
        if self.resumed is not None:
            self.resumed()


class TakesTurns(Protocol):
    """A module whose calls take turns."""

    turns: Turns


class Turns(state.Turns):
    """Lets one call at a time run on a module itself, and steps wait for it. After a bounded wait the others go on, and
    the call is lost: it may have seen values of two versions. The lock of the parameters guards everything. `holder` is
    the turn of the call that has the module."""

    def __init__(self, locks: ParameterLocks) -> None:
        self.claimed = self.writing = 0
        self.users: WeakSet[TakesTurns] = WeakSet()
        self.locks = locks
        self.holder: Turn | None = None
        self._patience = FIRST_PATIENCE_SECONDS
        self._longest = 0.0

    def await_idle(self) -> None:
        """Waits until no call of another thread has the module, and no step writes. The lock is held."""
        while not self._is_mine():
            if self.holder is not None:
                self._wait_for(self.holder)
            elif self.writing or self.claimed:
                self.locks.wait()
            else:
                return

    def are_taken(self) -> bool:
        """Whether a call of another thread has the module."""
        return self.holder is not None and not self._is_mine()

    def await_calls(self, that_write: bool = False) -> bool:
        waited = False
        while (holder := self.holder) is not None and (holder.writes or not that_write) and not self._is_mine():
            self._wait_for(holder)
            waited = True
        return waited

    def take(self, turn: Turn) -> None:
        """Waits until nobody else has the module, and gives it to a call."""
        with self.locks.lock:
            while not self._is_mine():
                if self.holder is not None:
                    self._wait_for(self.holder, turn.is_patient)
                elif not turn.writes and (self.writing or (self.claimed and not turn.nested)):
                    self.locks.wait()
                else:
                    break
            turn.outer, self.holder = self.holder, turn
            turn.is_ending = False
            turn.began = time.monotonic()

    def end(self, turn: Turn) -> None:
        """Notes how long a call took that has ended, whether or not it was lost."""
        self._longest = max(self._longest, time.monotonic() - turn.began)
        self._patience = max(PATIENCE_SECONDS, _LONGER * self._longest)

    def _is_mine(self) -> bool:
        return self.holder is not None and self.holder.thread == threading.get_ident()

    def _wait_for(self, holder: Turn, is_patient: bool = False) -> None:
        """Waits until something has changed. Takes the module from a call that does not end."""
        left = holder.began + self._patience - time.monotonic()
        if is_patient or holder.is_ending:
            self.locks.wait()
        elif left > 0:
            self.locks.wait(left)
        else:
            turn: Turn | None = holder
            while turn is not None:
                turn.is_lost = True
                turn.entered.close()
                turn = turn.outer
            self.holder = None
            self.locks.notify()


def shared_turns(locks: ParameterLocks, users: Iterable[TakesTurns]) -> Turns:
    """The turns that some modules share from now on, because another module has parameters of all of them. New ones if
    there is no such module. The lock of the parameters is held."""
    shared, *others = list({id(each.turns): each.turns for each in users}.values()) or [Turns(locks)]
    for other in others:
        other.await_idle()
        for each in list(other.users):
            each.turns = shared
            shared.users.add(each)
    return shared
