"""The requests of a backward: the gradients of several calls of one owner go in one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ps_wire import errors
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.compression.codec import Encoded
from ps_wire.limits import MIB
from ps_wire.v1.frames_pb2 import Frame, Reply

if TYPE_CHECKING:
    import torch

    from ps_wire.codec.payload import PayloadReader
    from ps_wire.errors import PsError
    from ps_wire.runtime.latency import Latency
    from ps_wire.v1.operations_pb2 import StepReply
    from trainer_client.graph.nodes import Gradient, WayBack
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session

MOST_BYTES: Final = MIB
"""Most bytes of gradients in a request with several calls, and in its answer. A larger request is sent earlier, so that
the owner begins earlier."""

MOST_CALLS: Final = 256
"""Most calls in one request."""


class Answer(NamedTuple):
    """The answer to a batch. There are gradients of the inputs of each call, unless no call has such inputs.

    Optimizers have stepped to these versions, up to the first that could not. If one of them has a policy, the
    owner says what it made of each step, and the values of its round. `checked` ones accept the gradients. If the owner
    has a log, it says which versions are `durable`. `staleness` has that of steps, up to the last that is not 0.
    """

    gradients: list[list[torch.Tensor | None]]
    versions: Sequence[int] = ()
    step_error: PsError | None = None
    stepped: Sequence[StepReply] = ()
    values: Sequence[Mapping[str, Any]] = ()
    checked: bool = False
    durable: Sequence[int] = ()
    staleness: Sequence[int] = ()


class Follow(Protocol):
    """What owners do after a backward, in its last requests; `answers` gets the answers to these."""

    answers: list[Pending[Answer]]

    def join(self, batches: Sequence[Batch]) -> None:
        """Writes it into the last requests of a backward, and sets their `follow`, if it is for just their owners."""


class Batch:
    """The calls of one owner whose gradients go in the next request, and what that owner does after the backward."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.follow: Follow | None = None
        self._frame = Frame()
        self.request = self._frame.request.backward
        self._payload = PayloadWriter()
        self._encoder = Encoder(self._payload)
        self._calls: list[WayBack] = []
        # Bytes of the inputs, and so of their gradients.
        self._input_bytes = 0
        self._latencies: list[Latency | None] = []

    def takes(self, call: WayBack, gradients: Sequence[Gradient]) -> bool:
        """Whether the request stays small with the gradients of one more call."""
        most = min(MOST_BYTES, self.session.max_message_bytes)
        nbytes = self._payload.nbytes + sum(map(_size, gradients))
        return nbytes <= most and self._input_bytes + call.input_bytes <= most and len(self._calls) < MOST_CALLS

    def add(self, call: WayBack, after: int | None, positions: Sequence[int], gradients: Sequence[Gradient]) -> None:
        """Adds a call, behind those before it.

        Its gradients are added after those of call `after`, if that is known.
        """
        message: Any = self.request
        if self._calls:
            message = message.more.add()
        else:
            message.context.CopyFrom(call.context.message)
        message.call = call.number
        message.outputs.extend(positions)
        if after is not None:
            message.after = after
        if len(call.place) > 1:
            message.place.extend(call.place)
        self._encoder.encode_into(message.gradients, gradients)
        self._calls.append(call)
        self._latencies.append(call.latency)
        self._input_bytes += call.input_bytes
        call.held = True

    def send(self) -> tuple[Pending[Answer], bool]:
        """Sends the request. Also says whether torch's engine goes on without the answer of one of its calls."""
        calls, follow = self._calls, self.follow
        read = partial(_read, self._latencies, any(map(_has_inputs, calls)), follow is not None)
        answer = self.session.submit(self._frame, self._payload, read)
        if follow is not None:
            follow.answers.append(answer)
        left = False
        for index, call in enumerate(calls):
            call.held = False
            if call.left:
                left = True
            elif call.leads_on:
                call.answer = answer, index
        return answer, left


_has_inputs: Final = attrgetter("devices")


def _size(gradient: Gradient) -> int:
    """Bytes of a gradient, at most: of a sparse one, as many as if it were dense."""
    if isinstance(gradient, Encoded):
        return gradient.nbytes
    return gradient.numel() * gradient.element_size()


def _read(
    latencies: Sequence[Latency | None], wanted: bool, followed: bool, reply: Reply, payload: PayloadReader
) -> Answer:
    """Reads an answer, with gradients if they are `wanted`, and with what has `followed` the backward."""
    backward = reply.backward
    for latency, seconds in zip(latencies, backward.seconds, strict=False):
        if latency is not None:
            latency.note(seconds)
    gradients: list[list[torch.Tensor | None]] = []
    if wanted:
        decoder = Decoder(payload)
        gradients = [decoder.decode(each) for each in (backward.gradients, *backward.more)]
    if not followed:
        return Answer(gradients)
    error = errors.from_message(backward.step_error) if backward.HasField("step_error") else None
    values: Sequence[Mapping[str, Any]] = ()
    if backward.stepped:
        values = [Decoder(payload).decode(each.values) if each.HasField("values") else {} for each in backward.stepped]
    durable, staleness = list(backward.durable_versions), list(backward.staleness)
    of_steps = backward.stepped, values, backward.checked, durable, staleness
    return Answer(gradients, list(backward.versions), error, *of_steps)
