"""What owners say of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer_client.contexts.stepped import Stepped, values_of

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadReader
    from ps_wire.v1 import operations_pb2 as pb
    from ps_wire.v1.frames_pb2 import Reply


def version(reply: Reply, payload: PayloadReader) -> int:
    """How many steps an optimizer has made."""
    return reply.step.version


class Answered(NamedTuple):
    """All that an owner says of a step.

    Attributes:
        reply: The reply.
        values: The values of its round.
    """

    reply: pb.StepReply
    values: dict[str, Any]


def answered(reply: Reply, payload: PayloadReader) -> Answered:
    """All that an owner says of a step."""
    return Answered(reply.step, values_of(reply.step, payload))


def all_answered(reply: Reply, payload: PayloadReader) -> list[Answered]:
    """All that an owner says of each of several optimizers that step together."""
    return [Answered(each, {}) for each in (reply.step, *reply.step.more)]


def joined(parts: Mapping[str, Answered]) -> Stepped:
    """The result of steps on owners, by themselves. The first by name has the reported values.

    On a single owner they may have a policy.
    """
    versions = {owner: each.reply.version for owner, each in parts.items()}
    if len(parts) == 1:
        ((reply, values),) = parts.values()
        return Stepped(versions, reply, values)
    made = Stepped(versions, reported=parts[min(parts)].values if parts else None)
    made.staleness = max((each.reply.staleness for each in parts.values()), default=0)
    return made


def stepped(owner: str, reply: Reply, payload: PayloadReader) -> Stepped:
    """What an owner says of a step."""
    return Stepped({owner: reply.step.version}, reply.step, values_of(reply.step, payload))
