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
    plain,
    replicas,
    reporting,
    spanning,
    steps,
)
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
        needs: The role that its callers need, as a bit of `roles`. There is no default: each operation has to say it.
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


def _operation(name: str, needs: int, handle: Callable[[RequestContext, Any, Any], None], **more: Any) -> Operation:
    return Operation(needs=needs, handle=handle, **asdict(operations.OPERATIONS[name]), **more)


_ALL: Final = (
    _operation("create", roles.TRAINER, creation.create, hosted=True, remake=creation.make_object),
    _operation("attach", roles.READER, handlers.attach, expected_seconds=inline.short),
    _operation("release", roles.READER, handlers.release, expected_seconds=inline.short),
    _operation("delete", roles.ADMIN, handlers.delete, expected_seconds=inline.short),
    _operation(
        "call",
        roles.TRAINER,
        handlers.call,
        expected_seconds=inline.call,
        hosted=True,
        remake=handlers.make_instance,
        plain=plain.FORWARD,
    ),
    _operation("fetch", roles.BULK, handlers.fetch, plain=plain.RESULT),
    _operation("backward", roles.TRAINER, backward.backward, expected_seconds=inline.backward, hosted=True),
    _operation("gradients", roles.TRAINER, handlers.gradients),
    _operation("norm", roles.TRAINER, handlers.norm),
    _operation("scale", roles.TRAINER, handlers.scale),
    _operation("unscale", roles.TRAINER, handlers.unscale),
    _operation("set_requires_grad", roles.TRAINER, handlers.set_requires_grad),
    _operation("end_context", roles.TRAINER, backward.end_context, expected_seconds=inline.short),
    _operation("optimizer", roles.TRAINER, creation.optimizer, hosted=True, remake=creation.make_optimizer),
    _operation("scheduler", roles.TRAINER, creation.scheduler, hosted=True, remake=creation.make_scheduler),
    _operation("step", roles.TRAINER, steps.step, expected_seconds=inline.step, hosted=True),
    _operation("set_options", roles.ADMIN, handlers.set_options, plain=plain.OPTIONS),
    _operation("leave", roles.TRAINER, handlers.leave),
    _operation("pull", roles.BULK, replicas.pull),
    _operation("push", roles.TRAINER, replicas.push, expected_seconds=replicas.expected_seconds, hosted=True),
    _operation("add_gradients", roles.TRAINER, replicas.add_gradients),
    _operation("hold", roles.TRAINER, spanning.hold),
    _operation("settle", roles.TRAINER, spanning.settle),
    _operation("reported", roles.TRAINER, handlers.reported),
    _operation("state", roles.BULK, handlers.state),
    _operation("load_state", roles.ADMIN, handlers.load_state, hosted=True),
    _operation("status", roles.READER, reporting.status, apart=True),
    _operation("register", roles.OWNER, directory.register),
    _operation("lookup", roles.READER, directory.lookup),
    _operation("members", roles.READER, directory.members),
    _operation("rendezvous", roles.OWNER, directory.rendezvous),
    _operation("join_communicator", roles.TRAINER, collectives.join),
    _operation("leave_communicator", roles.TRAINER, collectives.leave),
    _operation("collective", roles.TRAINER, collectives.collective),
    _operation("sessions", roles.ADMIN, administration.sessions, expected_seconds=inline.short),
    _operation("history", roles.READER, reporting.history, expected_seconds=inline.short),
    _operation("checkpoint", roles.ADMIN, administration.checkpoint, apart=True),
    _operation("durable", roles.TRAINER, durable.durable),
    _operation("move", roles.ADMIN, moving.move, apart=True, plain=plain.ACCEPT),
    _operation("evict", roles.ADMIN, administration.evict, expected_seconds=inline.short),
)

OPERATIONS: Final[dict[str, Operation]] = {each.name: each for each in _ALL}
"""Every operation, by its name in `Request` and `Reply`."""


def remake(ctx: RequestContext, operation: str, request: Message, object_id: str) -> HostedObject:
    """Makes an object again from the request that made it, whose payload the context holds, under the same id, so that
    handles stay valid. Raises as when it was made at first."""
    make = OPERATIONS[operation].remake
    assert make is not None
    return make(ctx, request, object_id)[0]
