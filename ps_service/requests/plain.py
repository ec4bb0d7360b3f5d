"""Requests that need less than others of their operation, because they change nothing or give little away; and what
calls need for the code that they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ps_service.access import roles
from ps_service.access.access import Plain, Point
from ps_wire.decorators import role_of
from ps_wire.v1.operations_pb2 import MOVE_ACCEPT

if TYPE_CHECKING:
    from ps_service.access.access import Access
    from ps_service.access.identities import Identity
    from ps_wire.v1.operations_pb2 import CallRequest, FetchRequest, MoveRequest, SetOptionsRequest, SnapshotRequest


def _is_forward(request: CallRequest) -> bool:
    # What the code needs is looked at when it is found, by `check_code`.
    return not (request.HasField("context") or request.keep or request.result_id)


def _is_result(request: FetchRequest) -> bool:
    return not request.target.parameter


def _is_options(request: SetOptionsRequest) -> bool:
    return not request.HasField("policy") and not request.owners


def _is_accept(request: MoveRequest) -> bool:
    return request.action == MOVE_ACCEPT


def _asks_for_snapshot(request: SnapshotRequest) -> bool:
    return not request.objects and not request.remove


def check_code(access: Access, identity: Identity, request: CallRequest, code: object) -> None:
    """Raises `PermissionDeniedError` if an identity may not call a method or function."""
    method = request.method or "forward"
    name, asked = request.function or f"the method {method}", role_of(code)
    if not asked and method == "forward" and not request.function:
        # In training mode it may change buffers.
        is_eval = not request.training and not request.own_mode
        name, asked = (name, "reader") if is_eval else ("a forward in training mode, and not after eval(),", "trainer")
    access.check(identity, Point(name, BY_NAME[asked or "trainer"]))


BY_NAME: Final = {name: bit for bit, name in roles.NAMES.items() if bit != roles.KNOWN}
FORWARD: Final = Plain(roles.READER, _is_forward, "a call outside of passes that keeps nothing")
RESULT: Final = Plain(roles.READER, _is_result, "a result, and not a parameter")
OPTIONS: Final = Plain(roles.TRAINER, _is_options, "options without a policy")
ASKS_FOR_SNAPSHOT: Final = Plain(roles.READER, _asks_for_snapshot, "asking for a snapshot, and not making one")
ACCEPT: Final = Plain(roles.READER, _is_accept, "following an object that has moved")
