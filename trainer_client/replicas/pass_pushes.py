"""Pushes of replicas through a pass: their gradients join it on the owners, and an optimizer steps with all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from ps_wire.errors import InvalidArgumentError, PsError
from ps_wire.runtime.nothing import nothing
from trainer_client.pending import Pending, results, when_all_done
from trainer_client.replicas.checks import CheckedReplica, has_counted
from trainer_client.replicas.ready_push import Push

if TYPE_CHECKING:
    import asyncio

    from ps_wire.reported import Reported
    from trainer_client.replicas.options import Reads
    from trainer_client.replicas.protocols import Added, OpenPass, OwnersOptimizer, Pushable
    from trainer_client.replicas.sent_gradients import GradientRequest, Sent
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.session import Session
    from trainer_client.session.stepped import Stepped

Pulls = dict[str, list[Pending[int]]]
"""The pulls of a push, by owner. There are some once a step was sent, or a round of several owners was decided."""


class PushedReplica(CheckedReplica, Protocol):
    """A replica whose gradients join a pass; see `Replica`."""

    @property
    def session(self) -> Session:
        """The session with the owner."""

    def gradient_request(self, context: OpenPass, opt: OwnersOptimizer, lends: bool, of_pass: bool) -> GradientRequest:
        """A request that adds gradients to those that a pass has on the owner."""

    def ask(self, reads: Reads | None, follows: Sequence[InFlightRequest[Any]] = ()) -> Pending[int]:
        """Pulls after other requests."""

    def forget_gradients(self, context: OpenPass | None = None) -> None:
        """Sets `.grad` of the parameters to None, or drops their gradients of a pass."""

    def undo(self, sent: Sent) -> None:
        """The gradients of a request do not count."""


class PassPushes:
    """The pushes of some replicas through passes.

    Args:
        loop: The client's event loop.
        replicas: The replicas.

    Attributes:
        loop, replicas: As the arguments.
        unread: The last push of which some of several owners may have counted gradients, until the parameters of all
            owners are here; None if there is none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, replicas: Sequence[PushedReplica]) -> None:
        self.loop = loop
        self.replicas = replicas
        self.unread: Pulls | None = None

    def check(self, opt: Pushable) -> OwnersOptimizer:
        """The optimizer of the replicas.

        Raises:
            InvalidArgumentError: It has no part for a replica, or has parameters in this process.
        """
        own = opt.of_parameters
        if own is None or not {each.session for each in self.replicas} <= set(own.sessions) or own.has_local_part:
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
        counted: Callable[[], None] = nothing,
        hands_over: bool = False,
    ) -> Push:
        """Sends gradients, or differences, to the owners, where they count once the push is sent, too.

        Args:
            opt: The optimizer.
            context: The pass.
            joins: Whether the pass belongs to the program, and has the gradients. Otherwise it is only for this push,
                and the gradients are `.grad`, or the differences that local steps have made.
            lends: Whether the gradients are not written to from now on.
            values: What is reported with them.
            pull: Whether the parameters after the step are pulled.
            counted: Called when the owners have answered, and their parameters are here.
            hands_over: Whether the pass of the program is over for that, and ends with the push.

        Raises:
            InvalidArgumentError, NonFiniteGradientError: As in `Replica.gradient_request`.
        """
        own = self.check(opt)
        requests: list[GradientRequest] = []
        try:
            for each in self.replicas:
                requests.append(each.gradient_request(context, own, lends=lends, of_pass=joins))
        except BaseException:
            self._undo([each.sent for each in requests])
            if not joins:
                context.close()
            raise
        added: dict[str, list[InFlightRequest[None]]] = {}
        for request in requests:
            added.setdefault(request.session.owner, []).append(request.submit())
        sent = [each.sent for each in requests]
        try:
            of_push = context.hand_over() if hands_over else context
        except BaseException:
            self._undo(sent)
            raise
        closes = hands_over or not joins

        def withdraw() -> None:
            self._undo(sent)
            if closes:
                of_push.close()

        begin = partial(self._begin, opt, of_push, joins, closes, added, sent, own.sessions, values, pull, counted)
        return Push(begin, withdraw)

    def is_read(self, unread: Pulls | None) -> None:
        """The parameters after a push are here, on all replicas."""
        if self.unread is unread:
            self.unread = None

    def _begin(
        self,
        opt: Pushable,
        context: OpenPass,
        joins: bool,
        closes: bool,
        added: Added,
        sent: Sequence[Sent],
        sessions: Sequence[Session],
        values: Mapping[str, Reported],
        pull: bool,
        counted: Callable[[], None],
    ) -> Pending[Stepped | None]:
        pulls: Pulls = {}

        def step_is_sent(owner: str, follows: Sequence[InFlightRequest[Any]]) -> None:
            if len(sessions) > 1:
                self.unread = pulls
            own = [each for each in self.replicas if each.session.owner == owner]
            _let_go([pulls.get(owner, ())])
            pulls[owner] = [each.ask(None, follows) for each in own if pull]

        def undo_if_open() -> None:
            # Once it is decided on several owners that gradients count, they do on some of them.
            if not pulls or len(sessions) == 1:
                self._undo(sent)

        async def push() -> tuple[Stepped, list[Pending[int]]]:
            """Steps; the result has the pulls whose answers are there, to be read when nothing uses the parameters."""
            try:
                stepped = await opt.step_pushed(context, added, step_is_sent, values)
                if stepped.repeated and not joins:
                    self._undo(sent)
                    raise has_counted()
            except BaseException as error:
                _let_go(pulls.values())
                if not isinstance(error, PsError):
                    raise
                if refusal := _error_of(added):
                    self._undo(sent)
                    raise refusal from None
                undo_if_open()
                raise
            finally:
                if closes:
                    context.close()
            if stepped.dropped:
                self._undo(sent)
            for each in sent:
                each.open = False  # they have counted, also if the wait for the parameters is cancelled
            asked = [each for part in pulls.values() for each in part]
            answered: Pending[None] = Pending(self.loop)
            when_all_done(iter(asked), lambda: answered.resolve(lambda: None))
            try:
                await answered
            except BaseException:
                _let_go([asked])
                raise
            return stepped, asked

        work = Pending.run(self.loop, push())

        def cancel() -> None:
            # At once: the program may encode its next gradients before the coroutine hears of it.
            undo_if_open()
            work.cancel()

        def taken_over() -> Stepped:
            """Takes over the parameters of the pulls, in the thread that waits for the push."""
            stepped, asked = work.result()
            results(asked)
            self.is_read(pulls)
            counted()
            return stepped

        done: Pending[Stepped | None] = Pending(self.loop, cancel)
        work.on_done(lambda: done.resolve(taken_over))
        return done

    def _undo(self, sent: Sequence[Sent]) -> None:
        for replica, each in zip(self.replicas, sent, strict=False):
            replica.undo(each)


def _let_go(pulls: Iterable[Sequence[Pending[int]]]) -> None:
    """Nobody will take over the answers of these pulls, and the program has not asked for them: none is reported."""
    for each in chain.from_iterable(pulls):
        each.cancel()
        if (failure := each.failure) is not None:
            failure.read()


def _error_of(added: Added) -> BaseException | None:
    """The first error of these requests, as far as they have ended."""
    errors = (each.error for requests in added.values() for each in requests if each.settled)
    return next((each for each in errors if each is not None), None)
