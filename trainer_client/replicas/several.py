"""Several replicas inside one local module, which an optimizer over several modules or owners steps together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ps_wire.errors import InvalidArgumentError
from trainer_client.pending import Pending
from trainer_client.replicas.local_steps import LocalSteps
from trainer_client.replicas.overlap import Overlap
from trainer_client.replicas.pass_pushes import PassPushes, Push
from trainer_client.replicas.pushing import Pushing, ScaledParameters
from trainer_client.replicas.replica import Replica

if TYPE_CHECKING:
    from ps_wire.reported import Reported
    from trainer_client.replicas.options import Reads
    from trainer_client.replicas.protocols import OpenPass, OwnersOptimizer, Pushable, Source
    from trainer_client.session.runs import Run
    from trainer_client.session.stepped import Stepped


class Replicas(Pushing):
    """Several replicas, of modules on any number of owners, inside one local module. Made by `Client.replicas`.

        model = ps.replicas(nn.Sequential(await tower.replica(), await head.replica()))
        for x, y in batches:
            loss_fn(model(x), y).backward()
            await model.push(opt)

    A push is one step, or one offer to the policy, of an optimizer of all of them. The parameters that it brings are,
    for each owner, from between two of its steps, the step of the push or a later one being the last of them. They are
    of the same version on all owners if no other trainer steps meanwhile, as under `Sync`, and `Quorum(n, of=n)`.

    With `overlap`, so many pushes may be under way while the next forward runs, instead of those of the replicas.

    Attributes:
        module: The module. Their owners may be different ones. What else is in it stays local, and is not pushed.

    Raises:
        InvalidArgumentError: It has no replica, or replicas that share a parameter.
    """

    def __init__(self, module: nn.Module, open_context: Callable[[Run | None], OpenPass], overlap: int) -> None:
        super().__init__()
        self.module = module
        self._replicas = [each for each in module.modules() if isinstance(each, Replica)]
        if not self._replicas:
            raise InvalidArgumentError("there is no replica in this module; `await net.replica()` makes one")
        parameters = self.pulled_parameters
        if len({id(each) for each in parameters}) < len(parameters):
            raise InvalidArgumentError("two replicas in this module share a parameter; each has its own on its owner")
        self.current = self._replicas[0].current
        self._open = open_context
        self._loop = self._replicas[0].session.loop
        self._overlap = Overlap(self._loop, overlap)
        self._scaled = ScaledParameters(parameters)
        self._pushes = PassPushes(self._loop, self._replicas)

    def pull(self, reads: Reads | None = None) -> Pending[int]:
        """Takes over what has changed on the owners since the last pull or push, as `Replica.pull`.

        Returns:
            How many parameters have changed.
        """
        unread = self._pushes.unread
        asked = Pending.all_of(self._loop, dict(enumerate(each.ask(reads) for each in self._replicas)))

        def outcome() -> int:
            found = sum(asked.result().values())
            self._pushes.is_read(unread)
            return found

        done: Pending[int] = Pending(self._loop, asked.cancel)
        asked.on_done(lambda: done.resolve(outcome))
        return done

    def _checked(self, opt: Pushable, context: OpenPass | None) -> Any:
        self._pushes.check(opt)
        for each in self._replicas:
            each.check_pushes()
        self._check_pass(opt, context)
        return opt

    def _written_push(self, target: Pushable, zero_grad: bool, values: Mapping[str, Reported], pull: bool) -> Push:
        return self._pushes.written(target, self._open(None), False, zero_grad, values, pull)

    def local_steps(self, inner: torch.optim.Optimizer, opt: OwnersOptimizer, *, every: int) -> LocalSteps:
        """Trains all replicas with an optimizer of this process from now on, as `Replica.local_steps`.

        The differences of all replicas are pushed together: on all owners they count in the same round.

        Raises:
            InvalidArgumentError: The local optimizer steps no parameter of a replica, the optimizer on the owners lacks
                a part for a replica or has parameters in this process, two replicas are of the same module, or this was
                made with an overlap.
        """
        return LocalSteps(self, inner, opt, every)

    def begin_local_steps(self, opt: OwnersOptimizer) -> None:
        self._pushes.check(opt)
        self.check_local_steps()
        for each in self._replicas:
            each.anchor()

    def check_local_steps(self) -> None:
        """Raises `InvalidArgumentError` also if two replicas are of the same module."""
        if self._overlap.most:
            raise InvalidArgumentError("replicas with an overlap take no local steps")
        if len({each.ref for each in self.sources}) < len(self._replicas):
            raise InvalidArgumentError(
                "two replicas are of the same module on its owner; local steps would lead them apart"
            )

    def push_difference(
        self, opt: OwnersOptimizer, run: Run, counted: Callable[[], None], values: Mapping[str, Reported]
    ) -> Pending[Stepped | None]:
        if self._pushes.unread is not None:
            raise InvalidArgumentError(
                "the last push failed after its differences may have counted on an owner, so that another push could "
                "count them twice: call pull() of these replicas first, which takes over what the owners have"
            )
        return self._overlap.push(self._pushes.written(opt, self._open(run), False, True, values, True, counted))

    def _through_passes(self) -> PassPushes:
        return self._pushes

    @property
    def readings(self) -> Sequence[int]:
        return [count for each in self._replicas for count in each.readings]

    @property
    def sources(self) -> Sequence[Source]:
        """The handles of the modules on their owners."""
        return [each.source for each in self._replicas]

    @property
    def pulled_parameters(self) -> Sequence[nn.Parameter]:
        return [each for replica in self._replicas for each in replica.pulled_parameters]
