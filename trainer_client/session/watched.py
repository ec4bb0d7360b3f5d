"""Requests whose time until the answer stands in a profile of torch, or in a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.profiling import ranges
from ps_wire.runtime.failures import Failure

if TYPE_CHECKING:
    from ps_wire.codec.payload import Buffer
    from ps_wire.profiling.ranges import Range
    from ps_wire.tracing import Span
    from ps_wire.v1.frames_pb2 import Frame, Reply
    from trainer_client.session.settings import Settings

is_profiled: Final[Callable[[], bool]] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
"""Whether a profiler of torch runs in this thread."""

_LEGACY_AND_KINETO: Final = ("LEGACY", "KINETO")


class Watch:
    """What is noted about one request.

    Args:
        range: Its range in the profile of the thread; None if that is not profiled.
        span: Its span; None if the program is not traced.
    """

    __slots__ = ("_range", "_span")

    def __init__(self, range: Range | None, span: Span | None) -> None:
        self._range = range
        self._span = span

    def answered(self, reply: Reply) -> None:
        """The answer is there."""
        if self._range is not None:
            self._range.end(reply.profile if reply.HasField("profile") else None)
        if self._span is not None:
            self._span.end()

    def ended(self, error: BaseException | None) -> None:
        """It has ended, with an error or not. Only the first end counts."""
        if self._range is not None:
            self._range.end()
        if self._span is not None:
            if error is None:
                self._span.end()
            else:
                self._span.fail(error)


def begin(settings: Settings, owner: str, frame: Frame, kind: str, what: str = "") -> Watch | None:
    """Begins to watch a request, and asks the owner to do so.

    Args:
        settings: Those of the session that it will be sent on.
        owner: Name of the owner.
        frame: Its frame.
        kind: How it is made: `sync`, `async`, `remote`, or the name of its operation.
        what: What it calls.

    Returns:
        None if it is neither profiled nor traced.
    """
    found, span, members = None, None, settings.members
    if is_profiled() and torch._C._autograd._profiler_type().name in _LEGACY_AND_KINETO:
        title = f"rpc_{kind}#{what}" if what else f"rpc_{kind}"
        key = f"{title}({members.name} -> {owner})"
        found = ranges.begin(key, members.number, members.number_of(owner))
        frame.request.probe.profile = found is not None
    if settings.tracing is not None:
        operation = frame.request.WhichOneof("operation") or ""
        attributes = {"ps.operation": operation, "ps.owner": owner, "ps.caller": members.name}
        span = settings.tracing.begin(what or operation, attributes, is_request=True)
        span.carry(frame.request.probe)
    return None if found is None and span is None else Watch(found, span)


class Watched:
    """A request that is watched.

    Attributes:
        watch: What is noted about it.
    """

    __slots__ = ()

    watch: Watch

    def answer(self, reply: Reply, payload: Buffer | None, held: Sequence[object] = ()) -> None:
        self.watch.answered(reply)
        super().answer(reply, payload, held)  # type: ignore[misc]

    def stayed(self, reply: Reply) -> None:
        self.watch.answered(reply)
        super().stayed(reply)  # type: ignore[misc]

    def resolve(self, outcome: Callable[[], Any]) -> bool:
        self.watch.ended(outcome.error if type(outcome) is Failure else None)
        return bool(super().resolve(outcome))  # type: ignore[misc]
