"""The parts of an optimizer with rounds over several owners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ps_wire.codec.payload import PayloadWriter
from ps_wire.reported import Reported, write
from ps_wire.runtime.nothing import nothing
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Request
from trainer_client.optimizers.replies import Answered, answered
from trainer_client.session.stepped import owner_seconds

if TYPE_CHECKING:
    from ps_wire.v1.values_pb2 import Value
    from trainer_client.contexts.context import Context
    from trainer_client.optimizers.parts import RemoteOptimizer
    from trainer_client.pending import Pending
    from trainer_client.session.in_flight import InFlightRequest


class RoundPart:
    """The part of an optimizer on one of several owners with the same rounds. The first owner decides them.

    Args:
        part: The part.

    Attributes:
        part: As the argument.
    """

    def __init__(self, part: RemoteOptimizer) -> None:
        self.part = part
        self._name = part.handle.ref.to_message()
        self._session = part.handle.session

    def begin_rounds(self, owners: Sequence[str], policy: Value) -> Pending[pb.Decisions]:
        """Has the optimizer take part in rounds over several owners, unless it does already."""
        request = pb.SetOptionsRequest(optimizer=self._name, owners=owners, policy=policy)
        return self._session.submit(Request(set_options=request), None, lambda reply, _: reply.set_options.decisions)

    def hold(
        self, context: Context, number: int, epoch: int, follows: Sequence[InFlightRequest[Any]] = ()
    ) -> Pending[int]:
        """Has an owner that does not decide the rounds hold gradients; the last decision that it has carried out."""
        request = pb.HoldRequest(optimizer=self._name, context=context.message, number=number, epoch=epoch)
        return self._session.submit(Request(hold=request), None, lambda reply, _: reply.hold.applied, follows=follows)

    def watch(self) -> Pending[None]:
        """Ends with a `DrainingError` when such an owner begins to drain."""
        request = pb.HoldRequest(optimizer=self._name, watch=True)
        return self._session.submit(Request(hold=request), None, nothing)

    def settle(self, number: int, epoch: int, decisions: pb.Decisions | None) -> InFlightRequest[pb.SettleReply]:
        """Has that owner carry out decisions; None frees the gradients of an offer that was not made."""
        request = pb.SettleRequest(optimizer=self._name, number=number, epoch=epoch, release=decisions is None)
        if decisions is not None:
            request.decisions.CopyFrom(decisions)
        return self._session.submit(Request(settle=request), None, lambda reply, _: reply.settle)

    def offer(
        self,
        context: Context,
        number: int,
        epoch: int,
        applied: Mapping[str, int],
        values: Mapping[str, Reported],
        follows: Sequence[InFlightRequest[Any]] = (),
    ) -> Pending[Answered]:
        """Offers gradients to the rounds that this owner decides for several."""
        request, payload = pb.StepRequest(optimizer=self._name, context=context.message), PayloadWriter()
        context.stepped.add(self._name.object_id)
        request.wait_seconds = owner_seconds(self._session.settings.timeout)
        request.offer.CopyFrom(pb.Offer(number=number, epoch=epoch, applied=applied))
        write(request.values, payload, values)
        return self._session.submit(Request(step=request), payload, answered, follows=follows)

    def withdraw(self, number: int, epoch: int, applied: Mapping[str, int]) -> Pending[pb.StepReply]:
        """Takes such an offer back; the number 0 only asks for the decisions."""
        request = pb.StepRequest(optimizer=self._name)
        request.offer.CopyFrom(pb.Offer(number=number, epoch=epoch, applied=applied, withdraw=True))
        return self._session.submit(Request(step=request), None, lambda reply, _: reply.step)
