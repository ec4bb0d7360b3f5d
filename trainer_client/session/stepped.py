"""The result of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ps_wire.attempts import REPEATED
from ps_wire.codec.values import Decoder

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadReader
    from ps_wire.v1.operations_pb2 import SettleReply, StepReply


def owner_seconds(timeout: float | None) -> float:
    """How long a call may wait for other trainers on its owner, whose error names them; 0 is no limit."""
    return 0.0 if timeout is None else timeout - min(1.0, 0.05 * timeout)


class Stepped(dict[str, int]):
    """The versions of an optimizer after a step, by owner.

    So it is also of a step that had counted before: one that is repeated, or whose answer was lost when its owner was
    killed. The version is the present one if the round is still open, or the owner does not know the other any more:
    another owner has applied the step, and rows of a table have moved from there since; or the owner follows the
    rounds of another one, and has started again from a checkpoint since.

    Attributes:
        staleness: The number of steps between the reading of the parameters and the round of the gradients; 0 of a step
            that had counted before.
        counted: How many gradients the round has; 0 if it is still open, or the gradients were dropped; 1 without a
            policy, and of a step that had counted before.
        dropped: Why the gradients do not count: `late`, `stale`, or `left` if this trainer has left the rounds
            meanwhile. Empty if they do.
        repeated: Whether they are left out because another attempt of the pass has counted, on all owners; see
            `Client.run`.
        reported: What trainers have reported with the gradients of the round (`values=` of steps and pushes), reduced
            by name; values that are kept, as dictionaries by `Client.trainer_name`. Empty if these gradients do not
            count, or if the round was still open.
        durable: The versions up to which the steps are on the disk, by owner; without owners that have no log. With
            `--durability always` it is the version itself. `Client.durable` waits for the rest.
    """

    __slots__ = ("counted", "dropped", "durable", "repeated", "reported", "staleness")

    def __init__(
        self,
        versions: dict[str, int],
        reply: StepReply | None = None,
        reported: Mapping[str, Any] | None = None,
        durable: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(versions)
        self.durable = {} if durable is None else dict(durable)
        self.reported = {} if reported is None else dict(reported)
        self.staleness = 0 if reply is None else reply.staleness
        self.counted = 1 if reply is None else reply.counted
        self.repeated = reply is not None and reply.dropped == REPEATED
        self.dropped = "" if reply is None or self.repeated else reply.dropped

    def __repr__(self) -> str:
        more = f", dropped={self.dropped!r}" if self.dropped else f", counted={self.counted}"
        more += f", reported={self.reported!r}" if self.reported else ""
        return f"Stepped({super().__repr__()}, staleness={self.staleness}{more})"


def durable_in(replies: Mapping[str, StepReply | SettleReply]) -> dict[str, int]:
    """The versions that are on the disk, by owner, as owners say of steps."""
    return {owner: each.durable_version for owner, each in replies.items() if each.HasField("durable_version")}


def values_of(reply: StepReply, payload: PayloadReader) -> dict[str, Any]:
    """The values of a round in a reply."""
    found: dict[str, Any] = Decoder(payload).decode(reply.values) if reply.HasField("values") else {}
    return found
