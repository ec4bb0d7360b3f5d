"""Administration: what an operator sees of sessions and contexts, and how they are ended. Used on the event loop."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from ps_service.sessions.gate import Gate
from ps_wire.errors import InvalidArgumentError, UnavailableError, UnknownNameError
from ps_wire.refs import ContextId

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.passes.contexts import PassContext
    from ps_service.sessions.sessions import SessionState

_log = logging.getLogger(__name__)

T = TypeVar("T")

BY_OPERATOR: Final = "its operator ended it"
"""Why a session or context is gone, as its trainer is told."""

_SESSION: Final = re.compile(r"(?P<digits>[0-9a-f]{1,8})(?:~(?P<number>[0-9]{1,18}))?")
_CONTEXT: Final = re.compile(r"(?P<digits>[0-9a-f]{1,8})/(?P<number>[0-9]{1,20})")


class Running(NamedTuple):
    """A request that has no answer yet.

    Attributes:
        trainer: Who asked.
        request: Its message.
    """

    trainer: bytes
    request: Any


class Control(Protocol):
    """What carries requests, as far as administration needs it."""

    def running(self) -> Iterator[Running]:
        """The requests that have no answer yet."""

    def end(self, session: SessionState) -> None:
        """Ends a session's stream, cancels its requests, and frees everything it held.

        Raises:
            Exception: Something could not be freed in good order; all the rest was.
        """


class Nothing:
    """Of an owner that has no requests."""

    def running(self) -> Iterator[Running]:
        return iter(())

    def end(self, session: SessionState) -> None:
        """There is none."""


def in_use(engine: Engine) -> Counter[ContextId]:
    """The contexts that requests without an answer use, and how many do."""
    found: Counter[ContextId] = Counter()
    for each in engine.control.running():
        if "context" in each.request.DESCRIPTOR.fields_by_name and each.request.HasField("context"):
            found[ContextId.from_message(each.request.context)] += 1
    return found


def end_unused(engine: Engine) -> None:
    """Ends the contexts that no request has used for longer than the owner allows."""
    limit = engine.limits.max_context_seconds
    if not limit:
        return
    why = f"no request had used it for {limit:g} s, the limit max_context_seconds on this owner, so the owner ended it"
    for context in engine.contexts.unused(limit, in_use(engine)):
        if engine.contexts.lose(context.id, f"{why}; raise the limit there if passes take that long"):
            engine.counters.contexts_ended["unused"] += 1
            _log.warning("context %s was ended: no request had used it for %g s", context.id, limit)


def session_ids(engine: Engine) -> dict[bytes, str]:
    """What each session is called, by its trainer."""
    sessions = engine.sessions.all()
    alike = Counter(session.name for session in sessions)
    return {
        session.trainer: session.name if alike[session.name] == 1 else f"{session.name}~{session.number}"
        for session in sessions
    }


def evict_session(engine: Engine, id: str) -> str:
    """Ends a session: its trainer loses it as if its lease had run out.

    Args:
        engine: The owner.
        id: What it is called, or the beginning of that.

    Returns:
        What it was called.

    Raises:
        InvalidArgumentError: This is no such id, or several sessions are meant.
        UnknownNameError: There is none.
        UnavailableError: The owner is about to end.
    """
    _check_serving(engine)
    match = _SESSION.fullmatch(id.lower())
    if match is None:
        raise InvalidArgumentError(f"{id!r} is not the id of a session; one looks like 0123abcd, or 0123abcd~7")
    digits, number = match["digits"], match["number"]

    def is_meant(session: SessionState) -> bool:
        return session.name.startswith(digits) and (number is None or session.number == int(number))

    ids = session_ids(engine)
    session = _only(f"session {id}", list(filter(is_meant, engine.sessions.all())), lambda each: ids[each.trainer])
    session.why_lost = BY_OPERATOR
    engine.counters.sessions_ended["operator"] += 1
    _log.warning("session %s was ended by the operator", ids[session.trainer])
    engine.control.end(session)
    return ids[session.trainer]


def evict_context(engine: Engine, id: str) -> str:
    """Ends a context: whoever uses it next is told so.

    Args:
        engine: The owner.
        id: What it is called.

    Returns:
        What it was called.

    Raises:
        InvalidArgumentError: This is no such id, or several contexts are meant.
        UnknownNameError: There is none.
        UnavailableError: The owner is about to end.
    """
    _check_serving(engine)
    match = _CONTEXT.fullmatch(id.lower())
    if match is None:
        raise InvalidArgumentError(f"{id!r} is not the id of a context; one looks like 0123abcd/7")
    digits, number = match["digits"], int(match["number"])

    def is_meant(context: PassContext) -> bool:
        return context.id.number == number and context.id.trainer.hex().startswith(digits)

    meant = list(filter(is_meant, engine.contexts.all()))
    context = _only(f"context {id}", meant, lambda each: str(each.id))
    _lose(engine, context)
    return str(context.id)


def evict_unused(engine: Engine, seconds: float) -> list[str]:
    """Ends the contexts that no request has used for so long; returns what they were called.

    Raises:
        InvalidArgumentError: This is no such time.
        UnavailableError: The owner is about to end.
    """
    _check_serving(engine)
    if not seconds >= 0:
        raise InvalidArgumentError(f"contexts are unused for a number of seconds from 0 on, not for {seconds:g}")
    unused = engine.contexts.unused(seconds, in_use(engine))
    return [str(context.id) for context in unused if _lose(engine, context)]


def _lose(engine: Engine, context: PassContext) -> bool:
    if not engine.contexts.lose(context.id, BY_OPERATOR):
        return False
    engine.counters.contexts_ended["operator"] += 1
    _log.warning("context %s was ended by the operator", context.id)
    return True


def _only(what: str, found: list[T], name: Callable[[T], str]) -> T:
    if not found:
        raise UnknownNameError(f"there is no {what} here; `ps-service sessions` lists what there is")
    if len(found) > 1:
        some = ", ".join(sorted(map(name, found))[:5])
        more = ", …" if len(found) > 5 else ""
        raise InvalidArgumentError(f"{what} may mean {len(found)} of them ({some}{more}); say which")
    return found[0]


def _check_serving(engine: Engine) -> None:
    # A checkpoint is being written, or has been: what would be freed now is a part of it.
    if engine.gate.state is Gate.State.STOPPED:
        raise UnavailableError(f"owner {engine.name!r} is shutting down")
