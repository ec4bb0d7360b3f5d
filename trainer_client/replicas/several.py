"""Several replicas inside one local module, which an optimizer over several modules or owners steps together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ps_wire.errors import InvalidArgumentError, PsError
from ps_wire.reported import Reductions, Reported, reported
from trainer_client.pending import Pending, when_all_done
from trainer_client.replicas.local_steps import LocalSteps, check_pushes
from trainer_client.replicas.overlap import Overlap, Push
from trainer_client.replicas.replica import Reads, Replica
from trainer_client.replicas.scaling import ScaledParameters

if TYPE_CHECKING:
    from trainer_client.contexts.context import Context
    from trainer_client.contexts.stepped import Stepped
    from trainer_client.handles.handles import RemoteModule
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.replicas.sent_gradients import GradientRequest, Sent
    from trainer_client.session.in_flight import InFlightRequest

Added = Mapping[str, Sequence["InFlightRequest[None]"]]
"""The requests that add gradients to a pass, by owner."""

Pulls = dict[str, list[Pending[int]]]
"""The pulls of a push, by owner. There are some once a step was sent, or a round of several owners was decided."""


def _nothing_more() -> None:
    """Does nothing more with an answer."""


class Replicas(nn.Module):
    """Several replicas, of modules on any number of owners, inside one local module. Made by `Client.replicas`.

        model = ps.replicas(nn.Sequential(await tower.replica(), await head.replica()))
        for x, y in batches:
            loss_fn(model(x), y).backward()
            await model.push(opt)

    A push is one step, or one offer to the policy, of an optimizer of all of them. The parameters that it brings are,
    for each owner, from between two of its steps, the step of the push or a later one being the last of them. They are
    of the same version on all owners if no other trainer steps meanwhile, as under `Sync`, and `Quorum` with `of`.

    Args:
        module: The module. Their owners may be different ones. What else is in it stays local, and is not pushed.
        open_context: Opens a pass.
        overlap: How many pushes may be under way while the next forward runs, instead of those of the replicas.

    Attributes:
        module: As the argument.

    Raises:
        InvalidArgumentError: It has no replica, or replicas that share a parameter.
    """

    module: nn.Module

    def __init__(self, module: nn.Module, open_context: Callable[[], Context], overlap: int) -> None:
        super().__init__()
        self.module = module
        self._replicas = [each for each in module.modules() if isinstance(each, Replica)]
        if not self._replicas:
            raise InvalidArgumentError("there is no replica in this module; `await net.replica()` makes one")
        parameters = self.pulled_parameters
        if len({id(each) for each in parameters}) < len(parameters):
            raise InvalidArgumentError("two replicas in this module share a parameter; each has its own on its owner")
        self._open = open_context
        self._loop = self._replicas[0].session.loop
        self._overlap = Overlap(self._loop, overlap)
        self._scaled = ScaledParameters(parameters)
        # The last push of which some owner may have counted gradients, until the parameters of all owners are here.
        self._unread: Pulls | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the local module."""
        return self.module(*args, **kwargs)

    def pull(self, reads: Reads | None = None) -> Pending[int]:
        """Takes over what has changed on the owners since the last pull or push, as `Replica.pull`.

        Returns:
            How many parameters have changed.
        """
        unread = self._unread
        asked = Pending.all_of(self._loop, dict(enumerate(each.ask(reads) for each in self._replicas)))

        def outcome() -> int:
            found = sum(asked.result().values())
            self._is_read(unread)
            return found

        done: Pending[int] = Pending(self._loop, asked.cancel)
        asked.on_done(lambda: done.resolve(outcome))
        return done

    def push(
        self,
        opt: DistributedOptimizer,
        *,
        pull: bool = True,
        scaler: torch.amp.GradScaler | None = None,
        zero_grad: bool = True,
        values: Mapping[str, Any] | None = None,
        reduce: Reductions = "mean",
    ) -> Pending[Stepped | None]:
        """Sends `.grad` of all replicas, and steps with them: on each owner with all of its gradients or none.

        With a policy, all owners take the gradients in the same round. Without one, nothing steps before all owners
        have accepted them. Arguments, results and errors are those of `Replica.push`, and, where an owner fails, of
        `DistributedOptimizer.step`.

        Raises:
            InvalidArgumentError: The optimizer has no part for a replica, or has parameters in this process.
        """
        self._check_optimizer(opt)
        for each in self._replicas:
            check_pushes(each)
        if scaler is not None and scaler.is_enabled() and not self._scaled.are_finite(scaler):
            if zero_grad:
                self._forget_gradients()
            return self._overlap.nothing()
        made = self._written(opt, zero_grad, reported(values, reduce) if values else {}, pull)
        if zero_grad:
            self._forget_gradients()
        return self._overlap.push(made)

    def local_steps(self, inner: torch.optim.Optimizer, opt: DistributedOptimizer, *, every: int) -> LocalSteps:
        """Trains all replicas with an optimizer of this process from now on, as `Replica.local_steps`.

        The differences of all replicas are pushed together: on all owners they count in the same round.

        Raises:
            InvalidArgumentError: The local optimizer steps no parameter of a replica, the optimizer on the owners lacks
                a part for a replica or has parameters in this process, two replicas are of the same module, or this was
                made with an overlap.
        """
        return LocalSteps(self, inner, opt, every)

    def begin_local_steps(self, opt: DistributedOptimizer) -> None:
        """Keeps the pulled parameters of all replicas from now on.

        Raises:
            InvalidArgumentError: As in `local_steps`.
        """
        self._check_optimizer(opt)
        if self._overlap.most:
            raise InvalidArgumentError("replicas with an overlap take no local steps")
        if len({each.ref for each in self.sources}) < len(self._replicas):
            raise InvalidArgumentError(
                "two replicas are of the same module on its owner; local steps would lead them apart"
            )
        for each in self._replicas:
            each.anchor()

    def push_difference(
        self, opt: DistributedOptimizer, counted: Callable[[], None], values: Mapping[str, Reported]
    ) -> Pending[Stepped | None]:
        """Sends what local steps have changed to all owners, and pulls. See `LocalSteps.push`.

        Args:
            opt: The optimizer on the owners.
            counted: Called when the owners have answered, and their parameters are here.
            values: What is reported with the differences.

        Raises:
            InvalidArgumentError: An owner may have counted the differences of the last push, which has failed.
        """
        if self._unread is not None:
            raise InvalidArgumentError(
                "the last push failed after its differences may have counted on an owner, so that another push could "
                "count them twice: call pull() of these replicas first, which takes over what the owners have"
            )
        return self._overlap.push(self._written(opt, True, values, True, counted))

    def _written(
        self,
        opt: DistributedOptimizer,
        lends: bool,
        values: Mapping[str, Reported],
        pull: bool,
        counted: Callable[[], None] = _nothing_more,
    ) -> Push:
        """Sends gradients, or differences, to the owners, where they count once the push is sent, too."""
        context = self._open()
        requests: list[GradientRequest] = []
        try:
            for each in self._replicas:
                requests.append(each.gradient_request(context, opt, lends=lends))
        except BaseException:
            self._undo([each.sent for each in requests])
            context.close()
            raise
        added: dict[str, list[InFlightRequest[None]]] = {}
        for request in requests:
            added.setdefault(request.session.owner, []).append(request.submit())
        sent = [each.sent for each in requests]

        def withdraw() -> None:
            self._undo(sent)
            context.close()

        return Push(partial(self._begin, opt, context, added, sent, counted, pull, values), withdraw)

    def _begin(
        self,
        opt: DistributedOptimizer,
        context: Context,
        added: Added,
        sent: Sequence[Sent],
        counted: Callable[[], None],
        *more: Any,
    ) -> Pending[Stepped | None]:
        pulls: Pulls = {}
        work = Pending.run(self._loop, self._push(opt, context, added, sent, pulls, *more))

        def cancel() -> None:
            # At once: the program may encode its next gradients before the coroutine hears of it.
            self._undo_if_open(opt, sent, pulls)
            work.cancel()

        done: Pending[Stepped | None] = Pending(self._loop, cancel)
        work.on_done(lambda: done.resolve(partial(self._taken_over, work, pulls, counted)))
        return done

    def _taken_over(
        self, work: Pending[tuple[Stepped, list[Pending[int]]]], pulls: Pulls, counted: Callable[[], None]
    ) -> Stepped:
        """Takes over the parameters of the pulls of a push, in the thread that waits for it."""
        stepped, asked = work.result()
        for each in asked:
            each.result()
        self._is_read(pulls)
        counted()
        return stepped

    def _is_read(self, unread: Pulls | None) -> None:
        """The parameters after a push are here, on all replicas."""
        if self._unread is unread:
            self._unread = None

    def finish(self) -> Pending[list[Stepped | None]]:
        """Waits for the pushes that are still under way with `overlap`, as `Replica.finish`."""
        return self._overlap.finish()

    def unscale_(self, scaler: torch.amp.GradScaler) -> None:
        """Divides `.grad` of all replicas by the scale of the loss, before gradients are clipped.

        Raises:
            RuntimeError: The scaler has unscaled them since its last update.
        """
        self._scaled.unscale(scaler)

    def nothing(self) -> Pending[Stepped | None]:
        """A result that is there: None."""
        return self._overlap.nothing()

    @property
    def sources(self) -> Sequence[RemoteModule]:
        """The handles of the modules on their owners."""
        return [each.source for each in self._replicas]

    @property
    def pulled_parameters(self) -> Sequence[nn.Parameter]:
        """The parameters of all replicas."""
        return [each for replica in self._replicas for each in replica.pulled_parameters]

    def _check_optimizer(self, opt: DistributedOptimizer) -> None:
        if not {each.session for each in self._replicas} <= set(opt.sessions) or opt.has_local_part:
            raise InvalidArgumentError(
                f"{opt!r} does not step all replicas in this module, or it steps parameters of this process; "
                "a push steps those of replicas"
            )

    def _forget_gradients(self) -> None:
        for each in self._replicas:
            each.forget_gradients()

    def _undo(self, sent: Sequence[Sent]) -> None:
        for replica, each in zip(self._replicas, sent, strict=False):
            replica.undo(each)

    def _undo_if_open(self, opt: DistributedOptimizer, sent: Sequence[Sent], pulls: Pulls) -> None:
        """A push has failed. Once it is decided on several owners that gradients count, they do on some of them."""
        if not pulls or len(opt.sessions) == 1:
            self._undo(sent)

    async def _push(
        self,
        opt: DistributedOptimizer,
        context: Context,
        added: Added,
        sent: Sequence[Sent],
        pulls: Pulls,
        pull: bool,
        values: Mapping[str, Reported],
    ) -> tuple[Stepped, list[Pending[int]]]:
        """Steps; the result has the pulls whose answers are there, to be read when nothing uses the parameters."""

        def step_is_sent(owner: str, follows: Sequence[InFlightRequest[Any]]) -> None:
            if len(opt.sessions) > 1:
                self._unread = pulls
            own = [each for each in self._replicas if each.session.owner == owner]
            pulls[owner] = [each.ask(None, follows) for each in own if pull]

        try:
            stepped = await opt.step_pushed(context, added, step_is_sent, values)
        except PsError:
            if refusal := _error_of(added):
                self._undo(sent)
                raise refusal from None
            self._undo_if_open(opt, sent, pulls)
            raise
        finally:
            context.close()
        if stepped.dropped:
            self._undo(sent)
        for each in sent:
            each.open = False  # they have counted, also if the wait for the parameters is cancelled
        asked = [each for part in pulls.values() for each in part]
        answered: Pending[None] = Pending(self._loop)
        when_all_done(iter(asked), lambda: answered.resolve(lambda: None))
        await answered
        return stepped, asked


def _error_of(added: Added) -> BaseException | None:
    """The first error of these requests, as far as they have ended."""
    errors = (each.error for requests in added.values() for each in requests if each.settled)
    return next((each for each in errors if each is not None), None)
