"""Lists and ends sessions and contexts for an operator. Used on the event loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from ps_service.sessions.gate import Gate
from ps_wire.errors import InvalidArgumentError, UnavailableError, UnknownNameError
from ps_wire.numbers import check_seconds
from ps_wire.refs import ContextId

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.passes.pass_context import PassContext

T = TypeVar("T")

BY_OPERATOR: Final = "its operator ended it"
"""The reason in the error that the trainer of an evicted session or context gets."""

_OPERATOR: Final = ("operator", BY_OPERATOR, " by the operator")
_SESSION: Final = re.compile(r"(?P<digits>[0-9a-f]{1,8})(?:~(?P<number>[0-9]{1,18}))?")
_CONTEXT: Final = re.compile(r"(?P<digits>[0-9a-f]{1,8})/(?P<number>[0-9]{1,20})")


def in_use(engine: Engine) -> Counter[ContextId]:
    """The number of unanswered requests that use each context."""
    found: Counter[ContextId] = Counter()
    for each in engine.requests.running():
        if "context" in each.request.DESCRIPTOR.fields_by_name and each.request.HasField("context"):
            found[ContextId.from_message(each.request.context)] += 1
    return found


def end_unused(engine: Engine) -> None:
    """Ends the contexts that no request has used for longer than the owner allows."""
    limit = engine.limits.max_context_seconds
    if not limit:
        return
    unused = f"no request had used it for {limit:g} s"
    why = f"{unused}, the limit max_context_seconds on this owner, so the owner ended it"
    for context in engine.contexts.unused(limit, in_use(engine)):
        _lose(engine, context, "unused", f"{why}; raise the limit there if passes take that long", f": {unused}")


def session_ids(engine: Engine) -> dict[bytes, str]:
    """The displayed id of each session, by trainer."""
    sessions = engine.sessions.all()
    alike = Counter(session.name for session in sessions)
    return {
        session.trainer: session.name if alike[session.name] == 1 else f"{session.name}~{session.number}"
        for session in sessions
    }


def evict_session(engine: Engine, id: str) -> str:
    """Ends a session, named by its displayed id or a prefix of it: its trainer loses it as if its lease had run out.

    Returns its full displayed id. Raises `InvalidArgumentError` if the id is malformed or ambiguous, `UnknownNameError`
    if there is none, and `UnavailableError` if the owner is draining.
    """
    _check_serving(engine)
    match = _SESSION.fullmatch(id.lower())
    if match is None:
        raise InvalidArgumentError(f"{id!r} is not the id of a session; one looks like 0123abcd, or 0123abcd~7")
    digits, number, ids = match["digits"], match["number"], session_ids(engine)
    meant = [
        each
        for each in engine.sessions.all()
        if each.name.startswith(digits) and (number is None or each.number == int(number))
    ]
    session = _only(f"session {id}", meant, lambda each: ids[each.trainer])
    session.why_lost = BY_OPERATOR
    engine.counters.sessions_ended["operator"] += 1
    name = ids[session.trainer]
    engine.events.note("ended", f"session {name} was ended by the operator", "warning", trainer=session.name)
    engine.requests.dismiss(session)
    return name


def evict_context(engine: Engine, id: str) -> str:
    """Ends a context; requests that use it afterwards raise `ContextLostError`. Returns and raises as
    `evict_session`."""
    _check_serving(engine)
    match = _CONTEXT.fullmatch(id.lower())
    if match is None:
        raise InvalidArgumentError(f"{id!r} is not the id of a context; one looks like 0123abcd/7")
    digits, number = match["digits"], int(match["number"])
    contexts = engine.contexts.all()
    meant = [each for each in contexts if each.id.number == number and each.id.trainer.hex().startswith(digits)]
    context = _only(f"context {id}", meant, lambda each: str(each.id))
    _lose(engine, context, *_OPERATOR)
    return str(context.id)


def evict_unused(engine: Engine, seconds: float) -> list[str]:
    """Ends the contexts that no request has used for some seconds; returns their displayed ids."""
    _check_serving(engine)
    check_seconds("the age of unused contexts", seconds)
    unused = engine.contexts.unused(seconds, in_use(engine))
    return [str(context.id) for context in unused if _lose(engine, context, *_OPERATOR)]


def _lose(engine: Engine, context: PassContext, by: str, why: str, how: str) -> bool:
    """Ends a context, for a reason for its trainer and another for the event. False if it has ended before."""
    if not engine.contexts.lose(context.id, why):
        return False
    engine.counters.contexts_ended[by] += 1
    engine.events.note("pass_ended", f"context {context.id} was ended{how}", "warning", subject=str(context.id))
    return True


def _only(what: str, found: list[T], name: Callable[[T], str]) -> T:
    if not found:
        raise UnknownNameError(f"there is no {what} here; `ps-service sessions` lists sessions and contexts")
    if len(found) > 1:
        some = ", ".join(sorted(map(name, found))[:5])
        more = ", …" if len(found) > 5 else ""
        raise InvalidArgumentError(f"{what} is ambiguous: it matches {len(found)} ({some}{more}); give more of the id")
    return found[0]


def _check_serving(engine: Engine) -> None:
    # A checkpoint is being written, or was: it includes what would be freed now.
    if engine.gate.state is Gate.State.STOPPED:
        raise UnavailableError(f"owner {engine.name!r} is shutting down")
