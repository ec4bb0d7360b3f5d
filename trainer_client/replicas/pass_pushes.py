"""Pushes of replicas through a pass: their gradients join it on the owners, and an optimizer steps with all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from ps_wire.errors import InvalidArgumentError, PsError
from ps_wire.runtime.noop import noop
from trainer_client.pending import Pending, all_ended, results
from trainer_client.replicas.protocols import Push, has_counted, of_parameters

if TYPE_CHECKING:
    import asyncio

    from ps_wire.reported import Reported
    from ps_wire.v1.operations_pb2 import AddGradientsReply
    from trainer_client.replicas.exchange import Exchange, Sent
    from trainer_client.replicas.protocols import Added, OpenPass, OwnersOptimizer, Pushable
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.stepped import Stepped


@dataclass(slots=True)
class PassPushes:
    """The pushes of some replicas through passes, by what each exchanges with its owner. `unread` marks the last push
    of which some of several owners may have counted gradients, until the parameters of all owners are here."""

    loop: asyncio.AbstractEventLoop
    exchanges: Sequence[Exchange]
    unread: object = None

    def check(self, opt: Pushable) -> OwnersOptimizer:
        """The optimizer of the replicas. Refuses one that lacks a part for them, or has parameters in this process."""
        own = of_parameters(opt)
        if own is None or not {each.session for each in self.exchanges} <= set(own.sessions) or own.has_local_part:
            raise InvalidArgumentError(
                f"{opt!r} does not step all replicas in this module, or it steps parameters of this process; "
                "a push steps those of replicas"
            )
        return own

    def written(
        self,
        opt: Pushable,
        context: OpenPass,
        joins: bool,
        lends: bool,
        values: Mapping[str, Reported],
        pull: bool,
        counted: Callable[[], None] = noop,
        hands_over: bool = False,
    ) -> Push:
        """Sends gradients, or differences, to the owners, as `Exchange.add_to_pass`. They count once the push is sent,
        too. With `joins` the pass belongs to the program, and has the gradients; with `hands_over` it is over for the
        program, and ends with the push. Otherwise it is only for this push. `counted` is called when the owners have
        answered, and their parameters are here."""
        own = self.check(opt)
        sent: list[Sent] = []
        sends: list[Callable[[], InFlightRequest[AddGradientsReply]]] = []
        try:
            for each in self.exchanges:
                gradients, send = each.add_to_pass(context, own, lends=lends, of_pass=joins)
                sent.append(gradients)
                sends.append(send)
        except BaseException:
            self.undo(sent)
            if not joins:
                context.close()
            raise
        requests = [send() for send in sends]
        try:
            of_push = context.hand_over() if hands_over else context
        except BaseException:
            self.undo(sent)
            raise
        several, closes = len(own.sessions) > 1, hands_over or not joins
        made = _PassPush(self, opt, of_push, joins, closes, several, requests, sent, values, pull, counted)
        return Push(made.send, made.withdraw)

    def is_read(self, unread: object) -> None:
        """The parameters after a push are here, on all replicas."""
        if self.unread is unread:
            self.unread = None

    def undo(self, sent: Sequence[Sent]) -> None:
        """The gradients of these requests, one for each replica, do not count."""
        for exchange, each in zip(self.exchanges, sent, strict=False):
            exchange.undo(each)


@dataclass(slots=True)
class _PassPush:
    """A push whose gradients are on their way, with the requests that add them, and what was `sent` of each replica, in
    the same order. It ends its pass if it `closes` it. There are `pulls`, by owner, once a step was sent, or a round of
    several owners was decided."""

    pushes: PassPushes
    opt: Pushable
    context: OpenPass
    joins: bool
    closes: bool
    several_owners: bool
    requests: Sequence[InFlightRequest[AddGradientsReply]]
    sent: Sequence[Sent]
    values: Mapping[str, Reported]
    pull: bool
    counted: Callable[[], None]
    pulls: dict[str, list[Pending[int]]] = field(default_factory=dict)
    mark: object = field(default_factory=object)

    def withdraw(self) -> None:
        """It will not be sent."""
        self.pushes.undo(self.sent)
        if self.closes:
            self.context.close()

    def send(self) -> Pending[Stepped | None]:
        """Steps. Parameters are taken over in the thread that waits for the result."""
        work = Pending.run(self.pushes.loop, self._step())

        def cancel() -> None:
            # At once: the program may encode its next gradients before the coroutine hears of it.
            self._undo_if_open()
            work.cancel()

        def taken_over() -> Stepped:
            stepped, asked = work.result()
            results(asked)
            self.pushes.is_read(self.mark)
            self.counted()
            return stepped

        done: Pending[Stepped | None] = Pending(self.pushes.loop, cancel)
        work.on_done(lambda: done.resolve(taken_over))
        return done

    async def _step(self) -> tuple[Stepped, list[Pending[int]]]:
        """Steps; the result has the pulls whose answers are there, to be read when nothing uses the parameters."""
        try:
            stepped = await self.opt.step_pushed(self.context, self._added(), self._step_is_sent, self.values)
            if stepped.repeated and not self.joins:
                self.pushes.undo(self.sent)
                raise has_counted()
        except BaseException as error:
            _let_go(self.pulls.values())
            if not isinstance(error, PsError):
                raise
            if refusal := _error_of(self.requests):
                self.pushes.undo(self.sent)
                raise refusal from None
            self._undo_if_open()
            raise
        finally:
            if self.closes:
                self.context.close()
        self._undo_left_out()
        if stepped.dropped:
            self.pushes.undo(self.sent)
        for each in self.sent:
            each.open = False  # they have counted, also if the wait for the parameters is cancelled
        asked = [each for part in self.pulls.values() for each in part]
        try:
            await all_ended(self.pushes.loop, asked)
        except BaseException:
            _let_go([asked])
            raise
        return stepped, asked

    def _added(self) -> Added:
        """The requests by the owners that get them now: modules may have moved."""
        added: dict[str, list[InFlightRequest[AddGradientsReply]]] = {}
        for each in self.requests:
            added.setdefault(each.session.owner, []).append(each)
        return added

    def _step_is_sent(self, owner: str, follows: Sequence[InFlightRequest[Any]]) -> None:
        if self.several_owners:
            self.pushes.unread = self.mark
        own = [each for each in self.pushes.exchanges if each.session.owner == owner]
        _let_go([self.pulls.get(owner, ())])
        self.pulls[owner] = [each.pull(None, int, follows) for each in own if self.pull]

    def _undo_left_out(self) -> None:
        """Undoes the gradients that the owners have left out, when those of the others count. In a pass of the program,
        other optimizers may step with those that this one does not step."""
        for exchange, sent, request in zip(self.pushes.exchanges, self.sent, self.requests, strict=True):
            if not request.settled or request.error is not None:
                continue
            reply = request.result()
            exchange.undo_left_out(sent, reply.left_out)
            if not self.joins:
                exchange.undo_left_out(sent, reply.not_stepped)

    def _undo_if_open(self) -> None:
        # Once it is decided on several owners that gradients count, they do on some of them.
        if not self.pulls or not self.several_owners:
            self.pushes.undo(self.sent)


def _let_go(pulls: Iterable[Sequence[Pending[int]]]) -> None:
    """Nobody will take over the answers of these pulls, and the program has not asked for them: none is reported."""
    for each in chain.from_iterable(pulls):
        each.cancel()
        if (failure := each.failure) is not None:
            failure.read()


def _error_of(requests: Iterable[InFlightRequest[Any]]) -> BaseException | None:
    """The first error of these requests, as far as they have ended."""
    errors = (each.error for each in requests if each.settled)
    return next((each for each in errors if each is not None), None)
