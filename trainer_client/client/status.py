"""Asks an owner for its status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_wire.status import OwnerStatus
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import StatusRequest

if TYPE_CHECKING:
    from trainer_client.session.in_flight import InFlightRequest
    from trainer_client.session.session import Session


def ask(session: Session, most: int = 0, events: int = 0, events_after: int = 0) -> InFlightRequest[OwnerStatus]:
    """The status of the owner of a session; the arguments are those of `Client.status`."""
    request = Request(status=StatusRequest(most=most, events=events, events_after=events_after))
    return session.submit(request, None, lambda reply, _: OwnerStatus.from_message(reply.status))
