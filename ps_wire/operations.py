"""The table of operations, with the properties that both sides need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class OperationInfo:
    """One operation.

    Attributes:
        name: Its name in `Request` and `Reply`.
        mutates: Whether running it twice differs from running it once. Its answer is then kept until it is confirmed.
        awaited: Whether trainers wait for its answer.
        waits: Whether it may wait for other members of a group. An owner that stops does not wait for it.
        large: Whether its answer may be large.
        grants: Whether its answer may grant references although it does not mutate.
        begins_pass: Whether it may begin a pass.
        ends_pass: Whether open passes need it to finish. An owner that drains still runs it.
    """

    name: str
    mutates: bool = True
    awaited: bool = True
    waits: bool = False
    large: bool = False
    grants: bool = False
    begins_pass: bool = False
    ends_pass: bool = False


_ALL: Final = (
    OperationInfo("create"),
    OperationInfo("attach"),
    OperationInfo("release", awaited=False, ends_pass=True),
    OperationInfo("delete"),
    OperationInfo("call", large=True, begins_pass=True),
    OperationInfo("fetch", mutates=False, large=True, grants=True),
    OperationInfo("backward", large=True, ends_pass=True),
    OperationInfo("gradients", mutates=False, large=True),
    OperationInfo("norm", mutates=False),
    OperationInfo("scale", ends_pass=True),
    OperationInfo("unscale", ends_pass=True),
    OperationInfo("set_requires_grad"),
    OperationInfo("end_context", awaited=False, ends_pass=True),
    OperationInfo("optimizer"),
    OperationInfo("scheduler"),
    OperationInfo("step", ends_pass=True),
    OperationInfo("set_options"),
    OperationInfo("leave"),
    OperationInfo("pull", mutates=False, large=True),
    OperationInfo("push", large=True),
    OperationInfo("add_gradients", begins_pass=True),
    OperationInfo("hold", ends_pass=True),
    OperationInfo("settle", ends_pass=True),
    OperationInfo("reported"),
    OperationInfo("add_to_curves"),
    OperationInfo("state", mutates=False, large=True),
    OperationInfo("load_state"),
    OperationInfo("status", mutates=False),
    OperationInfo("register", waits=True),
    OperationInfo("lookup", mutates=False, waits=True),
    OperationInfo("members", mutates=False, waits=True),
    OperationInfo("rendezvous", waits=True),
    OperationInfo("join_communicator", waits=True),
    OperationInfo("leave_communicator"),
    OperationInfo("collective", waits=True, large=True),
    OperationInfo("sessions", mutates=False),
    OperationInfo("history", mutates=False),
    OperationInfo("checkpoint", mutates=False),
    OperationInfo("durable", mutates=False),
    OperationInfo("snapshot"),
    OperationInfo("move", large=True),
    # It opens no session for its caller, and has no effect the second time.
    OperationInfo("evict", mutates=False),
)

OPERATIONS: Final[dict[str, OperationInfo]] = {each.name: each for each in _ALL}
"""Every operation, by name."""

NOT_AWAITED: Final = frozenset(each.name for each in _ALL if not each.awaited)
"""Names of the operations whose answers no trainer waits for."""
