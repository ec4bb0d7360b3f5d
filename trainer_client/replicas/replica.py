"""A local module with the parameters of a module on an owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import nn

from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.compression.error_feedback import ErrorFeedback
from ps_wire.errors import InvalidArgumentError
from ps_wire.reported import Reported, write
from ps_wire.runtime.nothing import nothing
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.replicas.checks import has_counted
from trainer_client.replicas.local_steps import LocalSteps
from trainer_client.replicas.options import Compress, Reads, choice_of, known_reads
from trainer_client.replicas.overlap import Overlap
from trainer_client.replicas.pass_pushes import PassPushes, Push
from trainer_client.replicas.pushing import Pushing, ScaledParameters
from trainer_client.replicas.sent_gradients import GradientRequest, Sent, SentGradients
from trainer_client.replicas.tensors import Tensors

if TYPE_CHECKING:
    from ps_wire.v1 import operations_pb2 as pb
    from trainer_client.pending import Pending
    from trainer_client.replicas.protocols import OpenPass, OwnersOptimizer, OwnersPart, Pushable, Source
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.runs import Run
    from trainer_client.session.session import Session
    from trainer_client.session.stepped import Stepped

T = TypeVar("T")


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
        super().__init__()
        self.module = module
        # A `RemoteModule` for the program. That makes replicas, so its name is not known here.
        self.source: Any = source
        self.current = more.pop("current")
        pulls: Compress = more.pop("pulls", None)
        self._tensors = Tensors(module, infos, pulls if pulls is None else choice_of(pulls))
        self._reads = known_reads(more.pop("reads"))
        self._overlap = Overlap(source.session.loop, more.pop("overlap"))
        feedback = None if compress is None else ErrorFeedback(choice_of(compress), **more)
        self._sent = SentGradients(self._tensors, feedback)
        self._scaled = ScaledParameters(self._tensors.parameters)

    def pull(self, reads: Reads | None = None) -> Pending[int]:
        """Takes over the parameters and buffers that have changed on the owner since the last pull or push.

        A backward through a forward from before it is exact or raises an error, as after a local optimizer step.

        Args:
            reads: `consistent`: all values are from between the same two steps. `inconsistent`: the owner waits for no
                step, and a value may be part of one. None for what the replica was made with.

        Returns:
            How many parameters have changed.
        """
        return self._pull(reads, lambda count: count)

    def _checked(self, opt: Pushable, context: OpenPass | None) -> Any:
        own = self._check_pass(opt, context)
        self.check_pushes()
        return own.part_on(self.session) if context is None else own

    def _written_push(self, target: OwnersPart, zero_grad: bool, values: Mapping[str, Reported], pull: bool) -> Push:
        return self._written(target, self._tensors.gradients(), pull, zero_grad, values)

    def local_steps(self, inner: torch.optim.Optimizer, opt: OwnersOptimizer, *, every: int) -> LocalSteps:
        """Trains this replica with an optimizer of this process from now on, and pushes differences.

        `Client.local_steps` makes the optimizer on the owner, too, as `LocalSGD` and `DiLoCo` have it.

        Args:
            inner: The local optimizer, over parameters of this replica.
            opt: The optimizer on the owner, which takes the mean of the differences as its gradient, or what its policy
                says. It may be any.
            every: Local steps between two pushes.

        Raises:
            InvalidArgumentError: The local optimizer steps no parameter of this replica, the optimizer on the owner has
                parameters elsewhere, or this replica was made with an overlap.
        """
        return LocalSteps(self, inner, opt, every)

    def begin_local_steps(self, opt: OwnersOptimizer) -> None:
        opt.part_on(self.source.session)
        self.check_local_steps()
        self.anchor()

    def check_local_steps(self) -> None:
        if self._overlap.most:
            raise InvalidArgumentError("a replica with an overlap takes no local steps")

    def push_difference(
        self, opt: OwnersOptimizer, run: Run, counted: Callable[[], None], values: Mapping[str, Reported]
    ) -> Pending[Stepped | None]:
        part = opt.part_on(self.source.session)
        return self._written(part, self._tensors.differences(), True, True, values, counted, run).send()

    def _written(
        self,
        part: OwnersPart,
        gradients: Sequence[torch.Tensor | None],
        pull: bool,
        lends: bool,
        values: Mapping[str, Reported],
        counted: Callable[[], None] = nothing,
        run: Run | None = None,
    ) -> Push:
        """Writes gradients into a request. With `lends` they are not copied, and no other code writes to them."""
        frame, payload = Frame(), PayloadWriter()
        request = frame.request.push
        if run is not None:
            run.attempt(request)
        write(request.values, payload, values)
        request.target.CopyFrom(self.source.ref.to_message())
        sent = self._sent.write(request, payload, gradients, lends)
        number = 0
        if pull:
            request.pull.reads = self._reads
            number = self._tensors.ask(request.pull)

        def pushed(stepped: Stepped, reply: Reply, payload: PayloadReader) -> Stepped:
            if stepped.repeated:
                self._sent.undo(sent)
                raise has_counted()
            if reply.push.HasField("pull"):
                self._tensors.take(number, reply.push.pull, payload)
            if stepped.dropped:
                self._sent.undo(sent)
            counted()
            return stepped

        def send() -> Pending[Stepped | None]:
            pending: Pending[Stepped | None] = part.push(frame, payload, pushed)
            if sent.encoded:
                pending.on_done(lambda: self._sent.undo(sent) if pending.error is not None else None)
            return pending

        return Push(send, partial(self._sent.undo, sent))

    def _forget_skipped(self) -> None:
        self.zero_grad()  # also that of parameters which the program has added

    def begin(self) -> Pending[Self]:
        """Pulls for the first time; the result is this replica."""
        return self._pull(None, lambda _: self)

    def _pull(
        self, reads: Reads | None, result: Callable[[int], T], follows: Sequence[InFlightRequest[Any]] = ()
    ) -> Pending[T]:
        frame = Frame()
        request = frame.request.pull
        request.target.CopyFrom(self.source.ref.to_message())
        request.reads = self._reads if reads is None else known_reads(reads)
        number = self._tensors.ask(request)
        return self.session.submit(
            frame, None, lambda reply, payload: result(self._tensors.take(number, reply.pull, payload)), follows=follows
        )

    def _through_passes(self) -> PassPushes:
        # Made each time: a reference to it would be a cycle.
        return PassPushes(self.session.loop, [self])

    # For `Replicas`

    def check_pushes(self) -> None:
        """Raises `InvalidArgumentError` if `.grad` goes to a local optimizer, and not to the owner."""
        if self._tensors.is_anchored:
            raise InvalidArgumentError("this replica takes local steps, so it pushes no gradients: use its LocalSteps")

    @property
    def session(self) -> Session:
        """The session with the owner."""
        found: Session = self.source.session
        return found

    @property
    def sources(self) -> Sequence[Source]:
        """The handle of the module on the owner."""
        return [self.source]

    @property
    def pulled_parameters(self) -> Sequence[nn.Parameter]:
        return self._tensors.parameters

    @property
    def readings(self) -> Sequence[int]:
        return [self._tensors.readings]

    def anchor(self) -> None:
        """Keeps the pulled parameters from now on, because local steps change those here."""
        self._tensors.anchor()

    def ask(self, reads: Reads | None, follows: Sequence[InFlightRequest[Any]] = ()) -> Pending[int]:
        """Like `pull`, after other requests."""
        return self._pull(reads, lambda count: count, follows)

    def gradient_request(self, context: OpenPass, opt: OwnersOptimizer, lends: bool, of_pass: bool) -> GradientRequest:
        """A request that adds gradients to those that a pass has on the owner, for a step of `opt`.

        They are those that the pass has here, if they are `of_pass`; otherwise `.grad`, or with local steps the
        difference that these have made. With `lends` they are not written to from now on.
        """
        tensors = self._tensors
        gradients = tensors.differences() if tensors.is_anchored else tensors.gradients(context if of_pass else None)
        frame, payload = Frame(), PayloadWriter()
        request = frame.request.add_gradients
        context.reserve(self.session)
        request.context.CopyFrom(context.message)
        request.target.CopyFrom(self.source.ref.to_message())
        request.optimizer.CopyFrom(opt.remotes[self.session.owner].name)
        sent = self._sent.write(request, payload, gradients, lends)
        return GradientRequest(self.session, frame, payload, sent)

    def undo(self, sent: Sent) -> None:
        """The gradients of a request do not count."""
        self._sent.undo(sent)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises `TypeError`: a copy would push and pull beside this one, without its state."""
        raise TypeError(
            "a replica can be neither copied nor pickled: copy its module, with copy.deepcopy(replica.module), save "
            "its state_dict, or make another replica with net.replica()"
        )

    def __repr__(self) -> str:
        return f"Replica of {self.source!r}: {self.module!r}"
