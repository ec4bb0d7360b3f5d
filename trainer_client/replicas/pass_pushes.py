"""Pushes of replicas through a pass: their gradients join it on the owners, and an optimizer steps with all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from ps_wire.errors import InvalidArgumentError, PsError
from trainer_client.pending import Pending, results, when_all_done
from trainer_client.replicas.ready_push import Push

if TYPE_CHECKING:
    import asyncio

    import torch

    from ps_wire.reported import Reported
    from trainer_client.contexts.context import Context
    from trainer_client.contexts.stepped import Stepped
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.replicas.replica import Replica
    from trainer_client.replicas.sent_gradients import GradientRequest, Sent
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.session import Session

Added = Mapping[str, Sequence["InFlightRequest[None]"]]
"""The requests that add gradients to a pass, by owner."""

Pulls = dict[str, list[Pending[int]]]
"""The pulls of a push, by owner. There are some once a step was sent, or a round of several owners was decided."""


class Pushable(Protocol):
    """An optimizer that steps replicas, maybe together with tables."""

    @property
    def of_parameters(self) -> DistributedOptimizer | None:
        """The optimizer of what is no table; None if there are only tables."""

    async def step_pushed(
        self,
        context: Context,
        added: Added,
        then: Callable[[str, Sequence[InFlightRequest[Any]]], None],
        values: Mapping[str, Reported],
    ) -> Stepped:
        """As `DistributedOptimizer.step_pushed`."""


def nothing_more() -> None:
    """Does nothing more with an answer."""


class PassPushes:
    """The pushes of some replicas through passes.

    Args:
        loop: The client's event loop.
        replicas: The replicas.

    Attributes:
        unread: The last push of which some of several owners may have counted gradients, until the parameters of all
            owners are here; None if there is none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, replicas: Sequence[Replica]) -> None:
        self._loop = loop
        self._replicas = replicas
        self.unread: Pulls | None = None

    def check(self, opt: Pushable) -> DistributedOptimizer:
        """The optimizer of the replicas.

        Raises:
            InvalidArgumentError: It has no part for a replica, or has parameters in this process.
        """
        own = opt.of_parameters
        if own is None or not {each.session for each in self._replicas} <= set(own.sessions) or own.has_local_part:
            raise InvalidArgumentError(
                f"{opt!r} does not step all replicas in this module, or it steps parameters of this process; "
                "a push steps those of replicas"
            )
        return own

    def written(
        self,
        opt: Pushable,
        context: Context,
        joins: bool,
        lends: bool,
        values: Mapping[str, Reported],
        pull: bool,
        counted: Callable[[], None] = nothing_more,
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

        Raises:
            InvalidArgumentError, NonFiniteGradientError: As in `Replica.gradient_request`.
        """
        own = self.check(opt)
        requests: list[GradientRequest] = []
        try:
            for each in self._replicas:
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

        def withdraw() -> None:
            self._undo(sent)
            if not joins:
                context.close()

        begin = partial(self._begin, opt, context, joins, added, sent, own.sessions, values, pull, counted)
        return Push(begin, withdraw)

    def is_read(self, unread: Pulls | None) -> None:
        """The parameters after a push are here, on all replicas."""
        if self.unread is unread:
            self.unread = None

    def _begin(
        self,
        opt: Pushable,
        context: Context,
        joins: bool,
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
            own = [each for each in self._replicas if each.session.owner == owner]
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
                if not joins:
                    context.close()
            if stepped.dropped:
                self._undo(sent)
            for each in sent:
                each.open = False  # they have counted, also if the wait for the parameters is cancelled
            asked = [each for part in pulls.values() for each in part]
            answered: Pending[None] = Pending(self._loop)
            when_all_done(iter(asked), lambda: answered.resolve(lambda: None))
            try:
                await answered
            except BaseException:
                _let_go([asked])
                raise
            return stepped, asked

        work = Pending.run(self._loop, push())

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

        done: Pending[Stepped | None] = Pending(self._loop, cancel)
        work.on_done(lambda: done.resolve(taken_over))
        return done

    def _undo(self, sent: Sequence[Sent]) -> None:
        for replica, each in zip(self._replicas, sent, strict=False):
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


def check_pass(
    opt: Pushable, context: Context | None, scaler: object, overlap: int, replicas: Sequence[Replica]
) -> DistributedOptimizer:
    """Checks that a push of replicas may join a pass of the program, or needs none; returns the parameters' optimizer.

    Raises:
        InvalidArgumentError: An optimizer with tables needs one, and so do gradients that an open pass has; or a
            backward of the pass has not ended, or there is a scaler or an overlap. Or there are only tables.
    """
    if not hasattr(opt, "of_parameters"):
        raise InvalidArgumentError(
            f"a push needs an optimizer on the owner, as Client.optimizer() returns, not a {type(opt).__name__}; to "
            "step the replica itself with an optimizer of this process, see Client.local_steps()"
        )
    own = opt.of_parameters
    if own is None:
        raise InvalidArgumentError(f"{opt!r} steps tables only, and no replica")
    if context is None:
        if own is not opt:
            raise InvalidArgumentError(
                "an optimizer with tables steps with the gradients of a pass: call ctx.backward(loss), and then "
                "push(opt, context=ctx)"
            )
        _check_gradients([each for replica in replicas for each in replica.pulled_parameters], replicas[0].current())
        return own
    if context.unfinished:
        raise InvalidArgumentError("the backward of this context has not ended: await ctx.backward(loss) first")
    if scaler is not None:
        raise InvalidArgumentError(
            "a push that joins a context takes no scaler, which would have to unscale the gradients of tables, too; "
            "bfloat16 needs none"
        )
    if overlap:
        raise InvalidArgumentError("a push that joins a context has no overlap: the context may end before it is sent")
    return own


def _check_gradients(parameters: Sequence[torch.Tensor], current: Context | None) -> None:
    """Raises `InvalidArgumentError` if a push would send nothing, because the open pass has all gradients."""
    if current is None or any(each.grad is not None for each in parameters):
        return
    if any(current.gradient(each) is not None for each in parameters):
        raise InvalidArgumentError(
            "no parameter of the replica has a .grad, and this would push nothing: after ctx.backward(loss) the "
            "gradients belong to the pass. Call push(opt, context=ctx), or loss.backward() if only the replica is used"
        )
