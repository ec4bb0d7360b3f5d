"""What one replica and its owner exchange: gradients on their way, which may not count, and values that are pulled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import torch

from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.compression.codec import Encoded
from ps_wire.errors import InvalidArgumentError
from ps_wire.reported import Reported, write
from ps_wire.runtime.locks import ReportingLock
from ps_wire.runtime.noop import noop
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.replicas.protocols import OpenPass, OwnersOptimizer, OwnersPart, Push, Source, has_counted

if TYPE_CHECKING:
    from ps_wire.compression.error_feedback import ErrorFeedback
    from trainer_client.pending import Pending
    from trainer_client.replicas.tensors import Tensors
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.runs import Run
    from trainer_client.session.session import Session
    from trainer_client.session.stepped import Stepped

T = TypeVar("T")

_log: Final = logging.getLogger("trainer_client")


Reads = Literal["consistent", "inconsistent"]
"""Whether all values that are read together are from between the same two steps."""

READS: Final[dict[str, pb.Reads]] = {"consistent": pb.READS_CONSISTENT, "inconsistent": pb.READS_INCONSISTENT}


@dataclass(slots=True)
class Sent:
    """The gradients of one request, by its number. `encoded` are those that a codec has encoded, by name, and
    `gradients` those of them that have a residual. They are `open` until it is decided whether they count."""

    number: int
    encoded: dict[str, Encoded]
    gradients: Mapping[str, torch.Tensor]
    open: bool = True


class Exchange:
    """What one replica sends, encoded by `feedback` if any, and pulls. Several threads may write and undo gradients."""

    def __init__(self, source: Source, tensors: Tensors, reads: pb.Reads, feedback: ErrorFeedback | None) -> None:
        self.source = source
        self.tensors = tensors
        self._reads = reads
        self._feedback = feedback
        self._count = 0
        self._is_told = False
        # By name, the number of the last request that has encoded it.
        self._last: dict[str, int] = {}
        # An answer may restore residuals while another thread writes the next gradients.
        self._lock = ReportingLock()

    @property
    def session(self) -> Session:
        """The session with the owner."""
        return self.source.session

    def pull(
        self, reads: Reads | None, result: Callable[[int], T], follows: Sequence[InFlightRequest[Any]] = ()
    ) -> Pending[T]:
        """Pulls after other requests. `result` makes the result of how many parameters have changed."""
        frame = Frame()
        request = frame.request.pull
        request.target.CopyFrom(self.source.ref.to_message())
        request.reads = self._reads if reads is None else known_reads(reads)
        number = self.tensors.ask(request)
        return self.session.submit(
            frame, None, lambda reply, payload: result(self.tensors.take(number, reply.pull, payload)), follows=follows
        )

    def push(
        self,
        part: OwnersPart,
        gradients: Sequence[torch.Tensor | None],
        pull: bool,
        lends: bool,
        values: Mapping[str, Reported],
        counted: Callable[[], None] = noop,
        run: Run | None = None,
    ) -> Push:
        """Writes gradients into a request. With `lends` they are not copied, and no other code writes to them."""
        frame, payload = Frame(), PayloadWriter()
        request = frame.request.push
        if run is not None:
            run.attempt(request)
        write(request.values, payload, values)
        sent = self._write(request, payload, gradients, lends)
        number = 0
        if pull:
            request.pull.reads = self._reads
            number = self.tensors.ask(request.pull)

        def pushed(stepped: Stepped, reply: Reply, payload: PayloadReader) -> Stepped:
            if stepped.repeated:
                self.undo(sent)
                raise has_counted()
            if reply.push.HasField("pull"):
                self.tensors.take(number, reply.push.pull, payload)
            self.undo_left_out(sent, reply.push.left_out)
            if stepped.dropped:
                self.undo(sent)
            counted()
            return stepped

        def send() -> Pending[Stepped | None]:
            request.target.CopyFrom(self.source.ref.to_message())  # it may have moved since the gradients were written
            pending: Pending[Stepped | None] = part.push(frame, payload, pushed)
            if sent.encoded:
                pending.on_done(lambda: self.undo(sent) if pending.error is not None else None)
            return pending

        return Push(send, partial(self.undo, sent))

    def add_to_pass(
        self, context: OpenPass, opt: OwnersOptimizer, lends: bool, of_pass: bool
    ) -> tuple[Sent, Callable[[], InFlightRequest[pb.AddGradientsReply]]]:
        """Writes gradients to add to those that a pass has on the owner, for a step of `opt`; what sends them, too.
        They are those that the pass has here, if they are `of_pass`; otherwise `.grad`, or with local steps the
        difference that these have made. With `lends` they are not written to from now on."""
        tensors = self.tensors
        gradients = tensors.differences() if tensors.is_anchored else tensors.gradients(context if of_pass else None)
        frame, payload = Frame(), PayloadWriter()
        request = frame.request.add_gradients
        context.reserve(self.session)
        request.context.CopyFrom(context.message)
        request.target.CopyFrom(self.source.ref.to_message())
        request.optimizer.CopyFrom(opt.remotes[self.session.owner].name)
        sent = self._write(request, payload, gradients, lends)

        def send() -> InFlightRequest[pb.AddGradientsReply]:
            adding = self.session.submit(frame, payload, lambda reply, _: reply.add_gradients)
            adding.in_pass = context
            return adding

        return sent, send

    def check_pushes(self) -> None:
        """Raises `InvalidArgumentError` if `.grad` goes to a local optimizer, and not to the owner."""
        if self.tensors.is_anchored:
            raise InvalidArgumentError("this replica takes local steps, so it pushes no gradients: use its LocalSteps")

    def _write(
        self,
        request: pb.PushRequest | pb.AddGradientsRequest,
        payload: PayloadWriter,
        gradients: Sequence[torch.Tensor | None],
        lends: bool,
    ) -> Sent:
        """Writes gradients. That there are none is logged, once for each replica. With `lends` they are not copied,
        because no other code writes to them from now on. If it raises, because a gradient cannot be sent, or its codec
        has no form for NaN and infinity, nothing is changed."""
        if not self._is_told and all(each is None for each in gradients):
            self._is_told = True
            _log.warning(
                "a push of a replica (%s) has no gradient, and changes nothing: loss.backward() comes before it, of a "
                "loss that is computed with the replica (logged once)",
                ", ".join(self.tensors.names[:3]),
            )
        tensors, feedback, values = self.tensors, self._feedback, []
        encoded: dict[str, Encoded] = {}
        kept: dict[str, torch.Tensor] = {}
        with self._lock:
            self._count += 1
            try:
                for position, given in enumerate(gradients):
                    if given is None:
                        continue
                    name, gradient = tensors.names[position], given.to(tensors.dtypes[position])
                    value: torch.Tensor | Encoded = gradient
                    if feedback is not None:
                        self._last[name] = self._count
                        value = feedback.encode(name, gradient)
                    if isinstance(value, Encoded):
                        encoded[name] = value
                        if feedback is not None and gradient.layout is torch.strided and feedback.has_residual(name):
                            own = lends and not _is_part(gradient)
                            kept[name] = gradient if own or gradient is not given else gradient.clone()
                    elif not lends or _is_part(value):
                        value = value.clone()
                    values.append(value)
                    request.positions.append(position)
                    request.steps.append(tensors.steps[position])
                Encoder(payload).encode_into(request.gradients, values)
            except BaseException:
                if feedback is not None:
                    feedback.rollback(encoded)
                raise
            return Sent(self._count, encoded, kept)

    def undo(self, sent: Sent) -> None:
        """Makes the residuals what they are without a request whose gradients do not count. Once for each request."""
        with self._lock:
            if self._feedback is None or not sent.open:
                return
            sent.open = False
            for name, each in sent.encoded.items():
                self._undo(self._feedback, sent, name, each)

    def undo_left_out(self, sent: Sent, positions: Sequence[int]) -> None:
        """Undoes the gradients at positions whose parameters the optimizer does not step. The others count."""
        if not positions:
            return
        with self._lock:
            if self._feedback is None or not sent.open:
                return
            for name in [self.tensors.names[each] for each in positions]:
                encoded = sent.encoded.pop(name, None)
                if encoded is not None:
                    self._undo(self._feedback, sent, name, encoded)

    def _undo(self, feedback: ErrorFeedback, sent: Sent, name: str, encoded: Encoded) -> None:
        """Makes one residual what it is without a request, whether others have encoded the parameter since or not."""
        if self._last[name] == sent.number:
            feedback.rollback([name])
        elif name in sent.gradients:
            feedback.retract(name, sent.gradients[name], encoded)


def known_reads(reads: str) -> pb.Reads:
    """How consistent a pull is, as messages have it. Raises `InvalidArgumentError` if there is no such kind."""
    if reads not in list(READS):
        raise InvalidArgumentError(f"reads are 'consistent' or 'inconsistent', not {reads!r}")
    return READS[reads]


def _is_part(gradient: torch.Tensor) -> bool:
    """Whether a dense gradient is part of a larger tensor, as in DistributedDataParallel, which writes to it again."""
    return gradient.layout is torch.strided and gradient.untyped_storage().nbytes() > gradient.nbytes
