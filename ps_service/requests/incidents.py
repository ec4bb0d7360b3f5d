"""Tells of objects that were made, moved and deleted, of hosted code that raised, and of requests that took long."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ps_service.requests.error_answers import explain, title, whole_traceback
from ps_wire.errors import RemoteError
from ps_wire.tables.routing import SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from ps_service.hosting.objects import HostedObject
    from ps_service.requests.context import RequestContext
    from ps_wire.errors import PsError
    from ps_wire.operations import OperationInfo

_FEW: Final = 4
"""Names of deleted objects that are listed."""

_REMOVES_ALL: Final = ("clear", "begin_restore")

TELLS_ROWS: Final = frozenset(("agree", "release", *_REMOVES_ALL))
"""Methods of a table for `rows`."""

_LONGEST: Final = 300
"""Most characters of an exception's message in an event; the traceback has more of it."""


def made(ctx: RequestContext, hosted: HostedObject) -> None:
    """An object was made. Anonymous ones come and go too often to be told of."""
    if hosted.name:
        text = f"{hosted} was made by trainer {ctx.engine.sessions.describe(ctx.trainer)}"
        _note(ctx, "made", text, hosted)


def deleted(ctx: RequestContext, hosted: HostedObject, dependents: list[str]) -> None:
    """A named object was deleted, and with it named objects that depended on it: see `dependents_of`."""
    some = ", ".join(dependents[:_FEW])
    if len(dependents) > _FEW:
        some += f" and {len(dependents) - _FEW} more"
    some = f", and with it {some}" if dependents else ""
    text = f"{hosted} was deleted by trainer {ctx.engine.sessions.describe(ctx.trainer)}{some}"
    _note(ctx, "deleted", text, hosted)


def loaded(ctx: RequestContext, hosted: HostedObject) -> None:
    """The state of an object was replaced."""
    text = f"the state of {hosted} was replaced by trainer {ctx.engine.sessions.describe(ctx.trainer)}"
    _note(ctx, "loaded", text, hosted)


@contextmanager
def rows(ctx: RequestContext, hosted: HostedObject, method: str) -> Iterator[None]:
    """A block that calls one of `TELLS_ROWS` of a table: rows of its slots may have moved then, or all have gone."""
    table, who = hosted.value, f"by trainer {ctx.engine.sessions.describe(ctx.trainer)}"
    of_table = f"of table {hosted.name!r}"
    before = table.routing.slots(table.owner)
    yield
    if method in _REMOVES_ALL:
        _note(ctx, "loaded", f"all rows {of_table} here were removed {who}", hosted)
        return
    after = table.routing.slots(table.owner)
    gone, come = before & ~after, after & ~before
    if gone.any():
        to = table.routing.owners[int(table.routing.of_slot[gone][0])]
        _note(ctx, "moved", f"{int(gone.sum()):,} of {SLOTS:,} slots {of_table} moved to owner {to!r} {who}", hosted)
    if come.any():
        _note(ctx, "moved", f"{int(come.sum()):,} of {SLOTS:,} slots {of_table} came from other owners {who}", hosted)


def policy(ctx: RequestContext, hosted: HostedObject, policy: object) -> None:
    """An optimizer has got another policy."""
    text = f"{hosted} has got the policy {policy} by trainer {ctx.engine.sessions.describe(ctx.trainer)}"
    _note(ctx, "policy", text, hosted)


def _note(ctx: RequestContext, kind: str, text: str, hosted: HostedObject) -> None:
    if not ctx.is_replayed:
        ctx.engine.events.note(kind, text, trainer=ctx.trainer.hex()[:8], subject=hosted.name, by=ctx.by())


def dependents_of(hosted: HostedObject) -> list[str]:
    """The names of the objects that are removed with an object, in quotes."""
    return sorted({repr(each.name) for each in _dependents(hosted) if each.name})


def _dependents(hosted: HostedObject) -> Iterator[HostedObject]:
    for each in list(hosted.dependents):
        yield each
        yield from _dependents(each)


def explained(ctx: RequestContext, what: str, error: BaseException) -> PsError:
    """The error that a caller gets for an exception of hosted code. It is told of with its traceback the first time it
    is raised at a place, and then ever more rarely; not an error of this project, which comes from the caller or from
    another owner."""
    told = explain(error, what, hosted=True)
    if told is error or not isinstance(told, RemoteError):
        return told
    engine, message = ctx.engine, f"{told.remote_type}: {told.remote_message}"
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]} …"
    where = f"on {engine.name} " if engine.membership.joined else ""
    engine.events.note(
        "raised",
        f"{where}{what} raised {message}, called by trainer {engine.sessions.describe(ctx.trainer)}",
        "warning",
        trainer=ctx.trainer.hex()[:8],
        subject=what,
        traceback=whole_traceback(error),
        alike=("raised", what, told.remote_type, _place(error.__traceback__)),
    )
    return told


def _place(trace: TracebackType | None) -> tuple[str, int]:
    """The file and line where an exception was raised."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return ("", 0) if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)


def slow(ctx: RequestContext, operation: OperationInfo, request: Any, seconds: float) -> None:
    """Hosted code took long, from the request's arrival to its answer. Requests that wait for others are left out."""
    if ctx.deferred is not None:
        return
    engine, what = ctx.engine, title(ctx.engine, operation.name, request)
    engine.events.note(
        "slow",
        f"{what} took {seconds:.1f} s for trainer {engine.sessions.describe(ctx.trainer)}",
        "warning",
        trainer=ctx.trainer.hex()[:8],
        subject=what,
        alike=("slow", what, ctx.trainer),
    )
