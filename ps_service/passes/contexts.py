"""The contexts of an owner: the open ones, and the numbers of those that have ended or were lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Set
from typing import TYPE_CHECKING, Final, Protocol

from ps_service.group.peers import NOTHING_SAID, Over
from ps_service.hosting.host import Host
from ps_service.memory.held import HeldByAll
from ps_service.passes.pass_context import KILLED, STOPPED, PassContext, ended_error, lost_error
from ps_service.passes.runs import Runs
from ps_service.quotas.accounts import NOBODY
from ps_wire.errors import SESSION_ENDED, SessionLostError
from ps_wire.number_set import SeenNumbers
from ps_wire.refs import ContextId

if TYPE_CHECKING:
    import torch

    from ps_service.group.peers import Membership
    from ps_service.quotas.accounts import Account
    from ps_service.quotas.quotas import Quotas
    from ps_service.tables.applied_steps import AppliedStep

_REMEMBERED: Final = 4096
"""Most numbers of open and ended contexts of one trainer that are kept, since it last told which have ended."""

_MOST_TOLD: Final = 64
"""Most open contexts of a trainer that are listed to other owners when one ends."""


class Contexts:
    """The open and ended contexts of an owner. Safe to use from several threads.

    The clock is monotonic, in seconds. `has_session` tells whether a caller has a session; it has none any more when
    `forget` is called. `runs` has what was applied of passes that may be run again.

    To look for a context that has ended raises a `ContextEndedError`; if this owner has lost it, a `ContextLostError`.
    """

    def __init__(
        self,
        held: HeldByAll | None = None,
        clock: Callable[[], float] = time.monotonic,
        has_session: Callable[[bytes], bool] = lambda _: True,
        quotas: Quotas | None = None,
    ) -> None:
        self.clock = clock
        self._has_session = has_session
        self._held = held or HeldByAll()
        self._quotas = quotas if quotas is not None and quotas.is_on else None
        self._lock = threading.Lock()
        self._open: dict[ContextId, PassContext] = {}
        # For each trainer: the numbers of its open contexts.
        self._numbers: dict[bytes, set[int]] = {}
        self._ended: dict[bytes, SeenNumbers] = {}
        # For each trainer: numbers of the contexts that this owner has lost, with the reason if it is known.
        self._lost: dict[bytes, dict[int, str]] = {}
        self.runs = Runs()
        # Is told the id of each context that is opened, and who has opened it, if the owner has a log.
        self.when_opened: Callable[[ContextId, bytes], None] | None = None
        # Is told the id of each context that is ended or lost, and which others are over, if the owner has a log.
        self.when_over: Callable[[ContextId, Over], None] | None = None
        # For each trainer: the number up to which contexts were open when the owner was killed.
        self._killed: dict[bytes, int] = {}
        # For each owner that calls this one: the trainers of the passes in which it did.
        self._delegated: dict[bytes, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, id: ContextId) -> bool:
        """Whether a context is open on this owner."""
        return id in self._open

    def used_by(self, callers: Set[bytes], without: Container[ContextId] = ()) -> bool:
        """Whether one of these callers uses an open context of this owner, besides some contexts."""
        with self._lock:
            return any(not callers.isdisjoint(each.callers) for id, each in self._open.items() if id not in without)

    def over(self) -> dict[bytes, tuple[SeenNumbers, set[int]]]:
        """By trainer: the contexts that it has ended, and those that would be lost if the owner stopped now."""
        with self._lock:
            lost = {trainer: set(numbers) for trainer, numbers in self._lost.items()}
            for id in self._open:
                lost.setdefault(id.trainer, set()).add(id.number)
            ended = {trainer: numbers.copy() for trainer, numbers in self._ended.items()}
        return {
            trainer: (ended.get(trainer) or SeenNumbers(_REMEMBERED), lost.get(trainer, set()))
            for trainer in ended.keys() | lost.keys()
        }

    def put_over(self, trainer: bytes, ended: SeenNumbers, lost: set[int], why: str = STOPPED) -> None:
        """Sets the ended and lost contexts of a trainer, from the checkpoint of an owner."""
        with self._lock:
            self._ended[trainer] = SeenNumbers.of(ended.floor, ended.above, ended.holes, _REMEMBERED)
            if lost:
                self._lost[trainer] = dict.fromkeys(lost, why)

    def lose_up_to(self, id: ContextId) -> None:
        """This context, and those of its trainer with smaller numbers, were open when the owner was killed."""
        with self._lock:
            self._killed[id.trainer] = max(id.number, self._killed.get(id.trainer, 0))

    def killed(self) -> dict[bytes, int]:
        """By trainer: the number up to which contexts were open when the owner was killed."""
        with self._lock:
            return dict(self._killed)

    def open(self, id: ContextId, caller: bytes = b"") -> PassContext:
        """The context with that id; opens it if this owner has not seen it yet. The caller is the trainer or owner that
        uses it: it is freed with the session of the last one. One without a session is a `SessionLostError`, and one
        that may open no further context a `QuotaError`."""
        caller = caller or id.trainer
        with self._lock:
            # Under the lock that `forget` takes after the session has ended, so that nothing stays that is opened late.
            if not self._has_session(caller):
                raise SessionLostError(SESSION_ENDED)
            context = self._open.get(id)
            if context is None:
                self._check(id)
                account = NOBODY if self._quotas is None else self._admitted(self._quotas, caller)
                context = self._open[id] = PassContext(id, self._held.of(id.trainer, caller), self.clock())
                context.account = account
                self._numbers.setdefault(id.trainer, set()).add(id.number)
                if self.when_opened is not None:
                    self.when_opened(id, caller)
            else:
                context.used = self.clock()
            context.callers.add(caller)
            if caller != id.trainer:
                self._delegated.setdefault(caller, set()).add(id.trainer)
            return context

    def check_quota(self, quotas: Quotas, id: ContextId, caller: bytes) -> None:
        """Raises `QuotaError` if a pass may not hold more of the quotas of who has opened it here, which is the caller
        if it is not open yet."""
        context = self._open.get(id)
        quotas.check_held(quotas.account_of(caller) if context is None else context.account)

    def get(self, id: ContextId) -> PassContext | None:
        """The context with that id; None if it has not been used on this owner."""
        context = self._open.get(id)
        if context is not None:
            context.used = self.clock()
            return context
        with self._lock:
            self._check(id)
            return self._open.get(id)

    def find(self, id: ContextId) -> PassContext:
        """The context with that id. One that this owner has not seen counts as lost."""
        context = self._open.get(id) or self.get(id)
        if context is None:
            raise lost_error(id)
        context.used = self.clock()
        return context

    def end(self, id: ContextId, over: Over = NOTHING_SAID) -> None:
        """Ends a context, also one that was never used here, because requests of it may still arrive. `over` says which
        other contexts of its trainer have ended: those that are open here end with it."""
        if self.when_over is not None:
            self.when_over(id, over)
        with self._lock:
            gone: list[PassContext] = []
            context = self._open.pop(id, None)
            if context is not None:
                gone.append(context)
                numbers = self._numbers[id.trainer]
                numbers.remove(id.number)
                if not numbers:
                    del self._numbers[id.trainer]
            if over.before and id.trainer in self._numbers:
                gone += self._pop_covered(id.trainer, over)
            ended = self._end(id)
            if over.before:
                ended.cover(over.before, over.but)
            for context in gone:
                if context.called is not None:
                    # Other owners do not see all contexts, so they get the numbers that are known here.
                    holes = ended.holes
                    over = Over(ended.floor + 1, holes) if len(holes) <= _MOST_TOLD else NOTHING_SAID
                    break
        for context in gone:
            if self._quotas is not None:
                self._quotas.give(context.account, contexts=1)
            context.end(over)

    def _pop_covered(self, trainer: bytes, over: Over) -> list[PassContext]:
        covered = {number for number in self._numbers[trainer] if number < over.before}.difference(over.but)
        return [context for number in covered if (context := self._pop(ContextId(trainer, number))) is not None]

    def _pop(self, id: ContextId) -> PassContext | None:
        # As `end` does, without the cost of a call.
        context = self._open.pop(id, None)
        if context is not None:
            numbers = self._numbers[id.trainer]
            numbers.remove(id.number)
            if not numbers:
                del self._numbers[id.trainer]
        return context

    @staticmethod
    def _admitted(quotas: Quotas, caller: bytes) -> Account:
        """What counts a context that a caller opens."""
        account = quotas.account_of(caller)
        quotas.admit(account, contexts=1)
        return account

    def all(self) -> list[PassContext]:
        """All open contexts."""
        with self._lock:
            return list(self._open.values())

    def unused(self, seconds: float, in_use: Container[ContextId]) -> list[PassContext]:
        """The open contexts that no request has used for some time. Those of unanswered requests count as in use."""
        now = self.clock()
        with self._lock:
            for id, context in self._open.items():
                if id in in_use:
                    context.used = now
            return [each for each in self._open.values() if now - each.used >= seconds and each.id not in in_use]

    def older(self) -> list[tuple[PassContext, float]]:
        """The open contexts that are older than the quota of who has opened them, and that quota in seconds."""
        quotas, now = self._quotas, self.clock()
        if quotas is None:
            return []
        found = [(each, quotas.least(each.account, "context_seconds")) for each in self.all()]
        return [(context, most) for context, most in found if now - context.began >= most]

    def lose(self, id: ContextId, why: str) -> bool:
        """Ends a context in place of its trainer, which is told the reason when it uses the context again. Returns
        whether it was open."""
        if self.when_over is not None:
            self.when_over(id, NOTHING_SAID)
        with self._lock:
            context = self._pop(id)
            if context is None:
                return False
            lost = self._lost.setdefault(id.trainer, {})
            lost[id.number] = why
            if len(lost) > _REMEMBERED:
                self._end(ContextId(id.trainer, next(iter(lost))))
            if len(self._lost) > _REMEMBERED:
                del self._lost[next(iter(self._lost))]
        if self._quotas is not None:
            self._quotas.give(context.account, contexts=1)
        context.end(why_lost=why)
        return True

    def forget(self, trainer: bytes) -> None:
        """Frees the contexts of a caller whose session has ended: a trainer, or an owner that was called in a pass."""
        with self._lock:
            gone = [each for each in self._open.values() if self._is_last(trainer, each)]
            for context in gone:
                self._pop(context.id)
                # A later step must raise; without gradients it would seem to succeed.
                self._end(context.id)
            self._ended.pop(trainer, None)
            self._lost.pop(trainer, None)
            self._killed.pop(trainer, None)
            kept = {context.id.trainer for context in gone}
            for other in self._delegated.pop(trainer, set()) - kept:
                # One that is there itself may still step with what another caller's end has freed.
                if not self._has_session(other) and not any(other in others for others in self._delegated.values()):
                    self._ended.pop(other, None)
        for context in gone:
            if self._quotas is not None:
                self._quotas.give(context.account, contexts=1)
            context.end()

    def _end(self, id: ContextId) -> SeenNumbers:
        ended = self._ended.get(id.trainer)
        if ended is None:
            ended = self._ended[id.trainer] = SeenNumbers(_REMEMBERED)
        ended.add(id.number)
        lost = self._lost.get(id.trainer)
        if lost is not None and lost.pop(id.number, None) is not None and not lost:
            del self._lost[id.trainer]
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]
        return ended

    def _is_last(self, trainer: bytes, context: PassContext) -> bool:
        if context.id.trainer == trainer:
            return True
        if trainer not in context.callers:
            return False
        # Its calls cannot be propagated any more; the other callers get an error when they try.
        context.callers.discard(trainer)
        return not context.callers

    def _check(self, id: ContextId) -> None:
        if id.number in self._ended.get(id.trainer, ()):
            raise ended_error(id)
        if self._killed and id.number <= self._killed.get(id.trainer, 0):
            raise lost_error(id, KILLED)
        why = self._lost.get(id.trainer, {}).get(id.number)
        if why is not None:
            raise lost_error(id, why)


class PassHost(Host, Protocol):
    """The parts of an owner that calls and their backward need; see `Engine`. `held` counts what contexts and results
    that stay here hold, by trainer."""

    @property
    def contexts(self) -> Contexts: ...

    @property
    def held(self) -> HeldByAll: ...

    @property
    def membership(self) -> Membership: ...

    @property
    def quotas(self) -> Quotas: ...

    def keeps_gradients(self, parameter: torch.Tensor) -> bool:
        """Whether gradients of a parameter are kept outside of passes, for a step to come."""

    def applied_to(self, parameter: torch.Tensor, forget: bool = False) -> list[AppliedStep]:
        """The steps of passes that may be run again which were applied to a table; it may `forget` them."""

    def used_with(self, parameter: torch.Tensor) -> list[str]:
        """The policies and schedulers of the optimizers of a parameter, for messages."""
