"""The requests of a backward: the gradients of several calls of one owner go in one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ps_wire import errors
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.compression.encoded import Encoded
from ps_wire.limits import MIB
from ps_wire.v1.frames_pb2 import Frame, Reply
from trainer_client.session.stepped import values_of

if TYPE_CHECKING:
    import torch

    from ps_wire.codec.payload import PayloadReader
    from ps_wire.errors import PsError
    from ps_wire.runtime.latency import Latency
    from ps_wire.v1.operations_pb2 import BackwardRequest, StepReply
    from trainer_client.graph.way_back import Gradient, WayBack
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

MOST_BYTES: Final = MIB
"""Most bytes of gradients in a request with several calls, and in its answer. A larger request is sent earlier, so that
the owner begins earlier."""

MOST_CALLS: Final = 256
"""Most calls in one request."""


class Answer(NamedTuple):
    """The answer to a batch.

    Attributes:
        gradients: The gradients of the inputs of each call; empty if no call has such inputs.
        versions: The versions of the optimizers that have stepped.
        step_error: The error of the optimizer that could not step; None if there is none.
        stepped: What the owner says of each of these steps, if one of the optimizers has a policy; empty otherwise.
        values: The values of the round of each of them.
        checked: Whether the optimizers that were to check the gradients accept them.
    """

    gradients: list[list[torch.Tensor | None]]
    versions: list[int]
    step_error: PsError | None
    stepped: Sequence[StepReply] = ()
    values: Sequence[Mapping[str, Any]] = ()
    checked: bool = False


class Follow(Protocol):
    """What owners do after a backward, in its last requests."""

    def fits(self, batches: Sequence[Batch]) -> bool:
        """Whether it goes with these requests, the last of a backward, because it is for their owners."""

    def write(self, session: Session, request: BackwardRequest) -> None:
        """Asks an owner for it."""

    def sent(self, session: Session, answer: Pending[Answer]) -> None:
        """The request was sent; this is its answer."""


class Described(Protocol):
    """A backward that is running."""

    def describe(self, request: BackwardRequest) -> None:
        """Writes into a request what all requests of this backward say."""


class Batch:
    """The calls of one owner whose gradients go in the next request. Not safe from several threads.

    Args:
        session: The session with the owner.
        current: The backward that is running.
    """

    def __init__(self, session: Session, current: Described) -> None:
        self.session = session
        self._current = current
        self._frame = Frame()
        self._payload = PayloadWriter()
        self._encoder = Encoder(self._payload)
        self._calls: list[WayBack] = []
        # Numbers of the calls that nothing waits for, because the gradients of their inputs stay on the owner.
        self._unawaited: set[int] = set()
        # Bytes of the inputs, and so of their gradients.
        self._input_bytes = 0
        self._latencies: list[Latency | None] = []
        # Whether a call has inputs that require grad.
        self._wanted = False

    def takes(self, call: WayBack, gradients: Sequence[Gradient]) -> bool:
        """Whether the request stays small with the gradients of one more call."""
        most = min(MOST_BYTES, self.session.max_message_bytes)
        nbytes = self._payload.nbytes + sum(map(_size, gradients))
        return nbytes <= most and self._input_bytes + call.input_bytes <= most and len(self._calls) < MOST_CALLS

    def add(self, call: WayBack, after: int | None, positions: Sequence[int], gradients: Sequence[Gradient]) -> None:
        """Adds a call; its backward runs after those of the calls before it.

        Args:
            call: The call.
            after: Number of the call whose gradients the owner adds just before; None if it is not known.
            positions: Positions of the outputs that have a gradient.
            gradients: As many gradients.
        """
        request = self._frame.request.backward
        message: Any
        if self._calls:
            message = request.more.add()
        else:
            message = request
            request.context.CopyFrom(call.context.message)
            self._current.describe(request)
        message.call = call.number
        message.outputs.extend(positions)
        if after is not None:
            message.after = after
        if len(call.place) > 1:
            message.place.extend(call.place)
        self._encoder.encode_into(message.gradients, gradients)
        self._calls.append(call)
        self._latencies.append(call.latency)
        if call.devices:
            self._wanted = True
        self._input_bytes += call.input_bytes
        call.batch = self

    @property
    def has_unawaited(self) -> bool:
        """Whether torch's engine goes on without the answer of one of its calls."""
        return bool(self._unawaited)

    def leave(self, call: WayBack) -> None:
        """Notes that torch's engine goes on without the answer of a call, whose inputs stay on the owner."""
        self._unawaited.add(call.number)

    def send(self, follow: Follow | None = None) -> Pending[Answer]:
        """Sends the request.

        Args:
            follow: What the owner does after it.
        """
        if follow is not None:
            follow.write(self.session, self._frame.request.backward)
        read = partial(_read, self._latencies, self._wanted, follow is not None)
        answer = self.session.submit(self._frame, self._payload, read)
        if follow is not None:
            follow.sent(self.session, answer)
        for index, call in enumerate(self._calls):
            call.batch = None
            if call.leads_on and call.number not in self._unawaited:
                call.answer = answer, index
        return answer


class Batches:
    """The calls whose gradients are held, by the requests in which they will be sent. Not safe from several threads.

    Calls whose backward takes long on the owner have requests of their own, so that they run concurrently there.
    """

    def __init__(self) -> None:
        self._all: list[Batch] = []
        # By owner, the request that further calls join.
        self._shared: dict[Session, Batch] = {}

    def has_room(self, call: WayBack, gradients: Sequence[Gradient]) -> bool:
        """Whether a call needs no further request because the one that it would join is large."""
        shared = self._shared.get(call.session) if call.together else None
        return shared is None or shared.takes(call, gradients)

    def add(
        self,
        current: Described,
        call: WayBack,
        after: int | None,
        positions: Sequence[int],
        gradients: Sequence[Gradient],
    ) -> None:
        """Adds a call.

        Args:
            current: The backward that is running.
            call: As for `Batch.add`, like the other arguments.
            after: See there.
            positions: See there.
            gradients: See there.
        """
        batch = self._shared.get(call.session) if call.together else None
        if batch is None or not batch.takes(call, gradients):
            batch = Batch(call.session, current)
            self._all.append(batch)
            if call.together:
                self._shared[call.session] = batch
        batch.add(call, after, positions, gradients)

    def take(self, follow: Follow | None) -> tuple[list[Batch], Follow | None]:
        """All requests, in order, and what follows if it goes with them; none are left."""
        taken, self._all, self._shared = self._all, [], {}
        return taken, follow if follow is not None and follow.fits(taken) else None


def _size(gradient: Gradient) -> int:
    """Bytes of a gradient, at most: of a sparse one, as many as if it were dense."""
    if isinstance(gradient, Encoded):
        return gradient.nbytes
    return gradient.numel() * gradient.element_size()


def _read(
    latencies: Sequence[Latency | None], wanted: bool, followed: bool, reply: Reply, payload: PayloadReader
) -> Answer:
    """Reads an answer.

    Args:
        latencies: How long the backwards of such calls take on the owner.
        wanted: Whether a call has inputs that require grad.
        followed: Whether checks, steps or the end of the pass were asked for.
        reply: The reply.
        payload: Its payload.
    """
    backward = reply.backward
    for latency, seconds in zip(latencies, backward.seconds, strict=False):
        if latency is not None:
            latency.note(seconds)
    gradients: list[list[torch.Tensor | None]] = []
    if wanted:
        decoder = Decoder(payload)
        gradients.append(decoder.decode(backward.gradients))
        for more in backward.more:
            gradients.append(decoder.decode(more))
    if not followed:
        return Answer(gradients, [], None)
    error = errors.from_message(backward.step_error) if backward.HasField("step_error") else None
    values: Sequence[Mapping[str, Any]] = ()
    if backward.stepped:
        values = [values_of(each, payload) for each in backward.stepped]
    return Answer(gradients, list(backward.versions), error, backward.stepped, values, backward.checked)
