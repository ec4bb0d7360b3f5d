"""What owners say of steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from weakref import WeakSet

from ps_wire.attempts import REPEATED
from ps_wire.codec.values import Decoder
from trainer_client.session.stepped import Stepped, durable_in, values_of

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadReader
    from ps_wire.v1 import operations_pb2 as pb
    from ps_wire.v1.frames_pb2 import Reply

_log: Final = logging.getLogger("trainer_client")

_told: Final[WeakSet[Any]] = WeakSet()
"""The optimizers of which a step without gradients was logged."""


class ReportedValues(dict[str, Any]):
    """The reduced values by name; those that are kept, as dictionaries by `Client.trainer_name`.

    Attributes:
        counts: How many gradients came with each of them, by name.
        gradients: How many gradients came with any.
    """

    def __init__(self, values: dict[str, Any], counts: dict[str, int], gradients: int) -> None:
        super().__init__(values)
        self.counts = counts
        self.gradients = gradients

    @classmethod
    def of(cls, reply: Reply, payload: PayloadReader) -> Self:
        """The values in a reply."""
        found = reply.reported
        counts = dict(zip(found.names, found.counts, strict=True))
        return cls(Decoder(payload).decode(found.values), counts, found.gradients)

    def __repr__(self) -> str:
        return f"ReportedValues({super().__repr__()}, gradients={self.gradients})"


class Answered(NamedTuple):
    """All that an owner says of a step, and the values of its round."""

    reply: pb.StepReply
    values: dict[str, Any]


def answered(reply: Reply, payload: PayloadReader) -> Answered:
    """All that an owner says of a step."""
    return Answered(reply.step, values_of(reply.step, payload))


def all_answered(reply: Reply, payload: PayloadReader) -> list[Answered]:
    """All that an owner says of each of several optimizers that step together. Values are those of the first."""
    return [answered(reply, payload), *(Answered(each, {}) for each in reply.step.more)]


def joined(parts: Mapping[str, Answered]) -> Stepped:
    """The result of steps on owners by themselves; one alone may have a policy. The first by name has the values."""
    versions = {owner: each.reply.version for owner, each in parts.items()}
    durable = durable_in({owner: each.reply for owner, each in parts.items()})
    if len(parts) == 1:
        ((reply, values),) = parts.values()
        return Stepped(versions, reply, values, durable)
    made = Stepped(versions, reported=parts[min(parts)].values if parts else None, durable=durable)
    made.staleness = max((each.reply.staleness for each in parts.values()), default=0)
    made.repeated = bool(parts) and all(each.reply.dropped == REPEATED for each in parts.values())
    return made


def stepped(owner: str, reply: Reply, payload: PayloadReader) -> Stepped:
    """What an owner says of a step."""
    step = reply.step
    return Stepped({owner: step.version}, step, values_of(step, payload), durable_in({owner: step}))


def stepped_beside(optimizer: object, owner: str, reply: Reply, payload: PayloadReader) -> Stepped:
    """What an owner says of a step with a pass in which this program has called nothing there. If the owner has no
    gradients of the pass either, that is logged, once for each optimizer."""
    found = stepped(owner, reply, payload)
    if not found.counted and not found.dropped and optimizer not in _told:
        _told.add(optimizer)
        _log.warning(
            "a step of %r changed nothing: its pass has called nothing on owner %r. Was the forward outside of the "
            "context, or that of a replica, which learns by loss.backward() and replica.push(opt)? (logged once)",
            optimizer,
            owner,
        )
    return found
