"""Replicas: a local module with the parameters of a module on an owner, and several of these in one module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from torch import nn, optim

from ps_wire.compression.choice import Compress, choice_of
from ps_wire.compression.error_feedback import ErrorFeedback
from ps_wire.errors import InvalidArgumentError
from ps_wire.shown import shown
from trainer_client.pending import Joined, Pending
from trainer_client.replicas.exchange import Exchange, Reads, known_reads
from trainer_client.replicas.local_steps import LocalSteps
from trainer_client.replicas.overlap import Overlap
from trainer_client.replicas.pass_pushes import PassPushes
from trainer_client.replicas.pushing import Pushing
from trainer_client.replicas.tensors import Tensors

if TYPE_CHECKING:
    from ps_wire.reported import Reported
    from ps_wire.v1 import operations_pb2 as pb
    from trainer_client.replicas.protocols import OpenPass, OwnersOptimizer, OwnersPart, Push, Pushable, Source
    from trainer_client.session.runs import Run
    from trainer_client.session.stepped import Stepped


class Replica(Pushing):
    """A local module with the parameters of a module on an owner. Made by `RemoteModule.replica`.

        replica = await net.replica()
        for x, y in batches:
            loss_fn(replica(x), y).backward()
            await replica.push(opt)

    Forward and backward run here, and nothing is recorded. Call `push` and `pull` between them.

    Attributes:
        module: The module itself.
        source: The handle of the module on the owner, a `RemoteModule`.
        current: Returns the pass of this task or thread.
    """

    def __init__(
        self, source: Source, module: nn.Module, infos: Sequence[pb.ParameterInfo], compress: Compress, **more: Any
    ) -> None:
        current, pulls = more.pop("current"), more.pop("pulls", None)
        tensors = Tensors(module, infos, None if pulls is None else choice_of(pulls))
        reads = known_reads(more.pop("reads"))
        overlap = Overlap(source.session.loop, more.pop("overlap"))
        feedback = None if compress is None else ErrorFeedback(choice_of(compress), **more)
        exchange = Exchange(source, tensors, reads, feedback)
        super().__init__(module, PassPushes(overlap.loop, [exchange]), overlap, current)
        # A `RemoteModule` for the program. That makes replicas, so its name is not known here.
        self.source: Any = source
        self.exchange = exchange

    def pull(self, reads: Reads | None = None) -> Pending[int]:
        """Takes over the parameters and buffers that have changed on the owner since the last pull or push.

        A backward through a forward from before it is exact or raises an error, as after a local optimizer step.

        Args:
            reads: `consistent`: all values are from between the same two steps. `inconsistent`: the owner waits for no
                step, and a value may be part of one. None for what the replica was made with.

        Returns:
            How many parameters have changed.
        """
        return self.exchange.pull(reads, int)

    def begin(self) -> Pending[Self]:
        """Pulls for the first time; the result is this replica."""
        return self.exchange.pull(None, lambda _: self)

    def _checked(self, opt: Pushable, context: OpenPass | None) -> Any:
        own = self._check_pass(opt, context)
        self.exchange.check_pushes()
        return own.part_on(self.exchange.session) if context is None else own

    def _written_push(self, target: OwnersPart, zero_grad: bool, values: Mapping[str, Reported], pull: bool) -> Push:
        return self.exchange.push(target, self.exchange.tensors.gradients(), pull, zero_grad, values)

    def _forget_skipped(self) -> None:
        self.zero_grad()  # also that of parameters which the program has added

    def local_steps(self, inner: optim.Optimizer, opt: OwnersOptimizer, *, every: int) -> LocalSteps:
        """Trains this replica with an optimizer of this process from now on, and pushes differences.

        `Client.local_steps` makes the optimizer on the owner, too, as `LocalSGD` and `DiLoCo` have it.

        Args:
            inner: The local optimizer, over parameters of this replica.
            opt: The optimizer on the owner, which takes the mean of the differences as its gradient, or what its policy
                says. It may be any.
            every: Local steps between two pushes.

        Raises:
            InvalidArgumentError: The local optimizer steps no parameter of this replica, the optimizer on the owner has
                parameters elsewhere, this replica was made with an overlap, or its parameters were written to since the
                last pull, for example by `load_state_dict`: call `pull` first.
        """
        return LocalSteps(self, inner, opt, every)

    def check_local_steps(self, opt: OwnersOptimizer | None = None) -> None:
        if opt is not None:
            opt.part_on(self.exchange.session)
        if self._overlap.most:
            raise InvalidArgumentError("a replica with an overlap takes no local steps")
        super().check_local_steps(opt)

    def push_difference(
        self, opt: OwnersOptimizer, run: Run, counted: Callable[[], None], values: Mapping[str, Reported]
    ) -> Pending[Stepped | None]:
        part = opt.part_on(self.exchange.session)
        return self.exchange.push(part, self.exchange.tensors.differences(), True, True, values, counted, run).send()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises `TypeError`: a copy would push and pull beside this one, without its state."""
        raise TypeError(
            "a replica can be neither copied nor pickled: copy its module, with copy.deepcopy(replica.module), save "
            "its state_dict, or make another replica with net.replica()"
        )

    def __repr__(self) -> str:
        return f"Replica of {self.source!r}: {self.module!r}"


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
        if not isinstance(module, nn.Module):
            raise InvalidArgumentError(
                "replicas() takes a module of torch with replicas inside, as nn.Sequential(first, second), "
                f"not {shown(module)}"
            )
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
                a part for a replica or has parameters in this process, two replicas are of the same module, this was
                made with an overlap, or parameters were written to since the last pull.
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
        super().check_local_steps(opt)

    def push_difference(
        self, opt: OwnersOptimizer, run: Run, counted: Callable[[], None], values: Mapping[str, Reported]
    ) -> Pending[Stepped | None]:
        if self._pushes.unread is not None:
            raise InvalidArgumentError(
                "the last push failed after its differences may have counted on an owner, so that another push could "
                "count them twice: call pull() of these replicas first, which takes over what the owners have"
            )
        return self._overlap.push(self._pushes.written(opt, self._open(run), False, True, values, True, counted))
