"""Several replicas inside one local module, which an optimizer over several modules or owners steps together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn, optim

from ps_wire.errors import InvalidArgumentError
from trainer_client.pending import Joined, Pending
from trainer_client.replicas.local_steps import LocalSteps
from trainer_client.replicas.overlap import Overlap
from trainer_client.replicas.pass_pushes import PassPushes
from trainer_client.replicas.pushing import Pushing
from trainer_client.replicas.replica import Replica

if TYPE_CHECKING:
    from ps_wire.reported import Reported
    from trainer_client.replicas.options import Reads
    from trainer_client.replicas.protocols import OpenPass, OwnersOptimizer, Push, Pushable
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
        replicas = [each for each in module.modules() if isinstance(each, Replica)]
        if not replicas:
            raise InvalidArgumentError("there is no replica in this module; `await net.replica()` makes one")
        parameters = [id(each) for replica in replicas for each in replica.pulled_parameters]
        if len(set(parameters)) < len(parameters):
            raise InvalidArgumentError("two replicas in this module share a parameter; each has its own on its owner")
        exchanges = [each.exchange for each in replicas]
        loop = exchanges[0].session.loop
        super().__init__(module, PassPushes(loop, exchanges), Overlap(loop, overlap), replicas[0].current)
        self._open = open_context

    def pull(self, reads: Reads | None = None) -> Pending[int]:
        """Takes over what has changed on the owners since the last pull or push, as `Replica.pull`.

        Returns:
            How many parameters have changed.
        """
        unread = self._pushes.unread

        def taken_over(counts: list[int]) -> int:
            self._pushes.is_read(unread)
            return sum(counts)

        return Joined(self._pushes.loop, [each.pull(reads, int) for each in self._exchanges], taken_over)

    def _checked(self, opt: Pushable, context: OpenPass | None) -> Any:
        self._pushes.check(opt)
        for each in self._exchanges:
            each.check_pushes()
        self._check_pass(opt, context)
        return opt

    def _written_push(self, target: Pushable, zero_grad: bool, values: Mapping[str, Reported], pull: bool) -> Push:
        return self._pushes.written(target, self._open(None), False, zero_grad, values, pull)

    def local_steps(self, inner: optim.Optimizer, opt: OwnersOptimizer, *, every: int) -> LocalSteps:
        """Trains all replicas with an optimizer of this process from now on, as `Replica.local_steps`.

        The differences of all replicas are pushed together: on all owners they count in the same round.

        Raises:
            InvalidArgumentError: The local optimizer steps no parameter of a replica, the optimizer on the owners lacks
                a part for a replica or has parameters in this process, two replicas are of the same module, or this was
                made with an overlap.
        """
        return LocalSteps(self, inner, opt, every)

    def check_local_steps(self, opt: OwnersOptimizer | None = None) -> None:
        if opt is not None:
            self._pushes.check(opt)
        if self._overlap.most:
            raise InvalidArgumentError("replicas with an overlap take no local steps")
        if len({each.ref for each in self.sources}) < len(self.sources):
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
