"""The gradients of a replica on their way: encoded into a request, and forgotten if they do not count."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from ps_wire.codec.values import Encoder
from ps_wire.compression.codec import Encoded
from ps_wire.runtime.locks import ReportingLock

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadWriter
    from ps_wire.compression.error_feedback import ErrorFeedback
    from ps_wire.v1 import operations_pb2 as pb
    from ps_wire.v1.frames_pb2 import Frame
    from trainer_client.replicas.tensors import Tensors
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.session import Session

_log: Final = logging.getLogger("trainer_client")


@dataclass(slots=True)
class Sent:
    """The gradients of one request, by its number among those of the replica.

    `encoded` are those that a codec has encoded, by name, and `gradients` those of them that have a residual. They are
    `open` as long as it is not decided whether they count.
    """

    number: int
    encoded: Mapping[str, Encoded]
    gradients: Mapping[str, torch.Tensor]
    open: bool = True


class GradientRequest(NamedTuple):
    """A request that adds gradients to a pass."""

    session: Session
    frame: Frame
    payload: PayloadWriter
    sent: Sent

    def submit(self) -> InFlightRequest[None]:
        """Sends it."""
        return self.session.submit(self.frame, self.payload, lambda reply, payload: None)


class SentGradients:
    """Writes the gradients of a replica into requests, encoded by `feedback`, if any. Safe from several threads."""

    def __init__(self, tensors: Tensors, feedback: ErrorFeedback | None) -> None:
        self._tensors = tensors
        self._feedback = feedback
        self._count = 0
        self._is_told = False
        # By name, the number of the last request that has encoded it.
        self._last: dict[str, int] = {}
        # An answer may restore residuals while another thread writes the next gradients.
        self._lock = ReportingLock()

    def write(
        self,
        request: pb.PushRequest | pb.AddGradientsRequest,
        payload: PayloadWriter,
        gradients: Sequence[torch.Tensor | None],
        lends: bool,
    ) -> Sent:
        """Writes gradients. That there are none is logged, once for each replica.

        With `lends` they are not copied, because no other code writes to them from now on. If it raises, because a
        gradient cannot be sent, or its codec has no form for NaN and infinity, nothing is changed.
        """
        if not self._is_told and all(each is None for each in gradients):
            self._is_told = True
            _log.warning(
                "a push of a replica (%s) has no gradient, and changes nothing: loss.backward() comes before it, of a "
                "loss that is computed with the replica (logged once)",
                ", ".join(self._tensors.names[:3]),
            )
        tensors, feedback, values = self._tensors, self._feedback, []
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
                if self._last[name] == sent.number:
                    self._feedback.rollback([name])
                elif name in sent.gradients:
                    self._feedback.retract(name, sent.gradients[name], each)


def _is_part(gradient: torch.Tensor) -> bool:
    """Whether a dense gradient is part of a larger tensor, as in DistributedDataParallel, which writes to it again."""
    return gradient.layout is torch.strided and gradient.untyped_storage().nbytes() > gradient.nbytes
