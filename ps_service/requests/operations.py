"""The table of operations, with everything that the owner needs to know about each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ps_service.access import roles
from ps_service.requests import (
    administration,
    backward,
    collectives,
    creation,
    directory,
    durable,
    handlers,
    inline,
    moving,
    replicas,
    reported_values,
    reporting,
    snapshots,
    spanning,
    steps,
)
from ps_service.requests.needs import NEEDS
from ps_wire import operations

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ps_service.access.access import Plain
    from ps_service.hosting.objects import HostedObject
    from ps_service.requests.context import RequestContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(operations.OperationInfo):
    """One operation, as the owner runs it.

    Attributes:
        needs: The role that its callers need, as a bit of `roles`: see `NEEDS`.
        plain: What its plain requests need, if that is less.
        handle: Reads the request and fills in the reply. It may defer the reply, see `RequestContext.defer`.
        expected_seconds: How long a request is expected to take on the event loop; infinity for one that must not run
            there, and None if none may.
        hosted: Whether it runs code that the owner hosts. The caller gets the exceptions of that code in full.
        apart: Whether it runs in a thread of its own, so that it is answered however busy the compute threads are.
        remake: Makes an object again from a request of this kind, after a restart, under an id; None if it makes none.
    """

    needs: int
    handle: Callable[[RequestContext, Any, Any], None]
    plain: Plain | None = None
    expected_seconds: Callable[[RequestContext, Any], float] | None = None
    hosted: bool = False
    apart: bool = False
    remake: Callable[[RequestContext, Any, str], tuple[HostedObject, bool]] | None = None

    def __post_init__(self) -> None:
        if self.needs not in roles.NAMES or self.needs == roles.KNOWN:
            raise ValueError(f"the operation {self.name!r} needs no role that there is")


def _operation(name: str, handle: Callable[[RequestContext, Any, Any], None], **more: Any) -> Operation:
    asked = NEEDS[name]
    return Operation(needs=asked.needs, plain=asked.plain, handle=handle, **asdict(operations.OPERATIONS[name]), **more)


_ALL: Final = (
    _operation("create", creation.create, hosted=True, remake=creation.make_object),
    _operation("attach", handlers.attach, expected_seconds=inline.short),
    _operation("release", handlers.release, expected_seconds=inline.short),
    _operation("delete", handlers.delete, expected_seconds=inline.short),
    _operation(
        "call",
        handlers.call,
        expected_seconds=inline.call,
        hosted=True,
        remake=handlers.make_instance,
    ),
    _operation("fetch", handlers.fetch),
    _operation("backward", backward.backward, expected_seconds=inline.backward, hosted=True),
    _operation("gradients", handlers.gradients),
    _operation("norm", handlers.norm),
    _operation("scale", handlers.scale),
    _operation("unscale", handlers.unscale),
    _operation("set_requires_grad", handlers.set_requires_grad),
    _operation("end_context", backward.end_context, expected_seconds=inline.short),
    _operation("optimizer", creation.optimizer, hosted=True, remake=creation.make_optimizer),
    _operation("scheduler", creation.scheduler, hosted=True, remake=creation.make_scheduler),
    _operation("step", steps.step, expected_seconds=inline.step, hosted=True),
    _operation("set_options", handlers.set_options),
    _operation("leave", handlers.leave),
    _operation("pull", replicas.pull),
    _operation("push", replicas.push, expected_seconds=replicas.expected_seconds, hosted=True),
    _operation("add_gradients", replicas.add_gradients),
    _operation("hold", spanning.hold),
    _operation("settle", spanning.settle),
    _operation("reported", handlers.reported),
    _operation("add_to_curves", reported_values.add_to_curves, expected_seconds=inline.add_to_curves),
    _operation("state", handlers.state),
    _operation("load_state", handlers.load_state, hosted=True),
    _operation("status", reporting.status, apart=True),
    _operation("register", directory.register),
    _operation("lookup", directory.lookup),
    _operation("members", directory.members),
    _operation("rendezvous", directory.rendezvous),
    _operation("join_communicator", collectives.join),
    _operation("leave_communicator", collectives.leave),
    _operation("collective", collectives.collective),
    _operation("sessions", administration.sessions, expected_seconds=inline.short),
    _operation("history", reporting.history, expected_seconds=inline.short),
    _operation("checkpoint", administration.checkpoint, apart=True),
    _operation("durable", durable.durable),
    _operation("snapshot", snapshots.snapshot),
    _operation("move", moving.move, apart=True),
    _operation("evict", administration.evict, expected_seconds=inline.short),
)

OPERATIONS: Final[dict[str, Operation]] = {each.name: each for each in _ALL}
"""Every operation, by its name in `Request` and `Reply`."""


def remake(ctx: RequestContext, operation: str, request: Message, object_id: str) -> HostedObject:
    """Makes an object again from the request that made it, whose payload the context holds, under the same id, so that
    handles stay valid. Raises as when it was made at first."""
    make = OPERATIONS[operation].remake
    assert make is not None
    return make(ctx, request, object_id)[0]
