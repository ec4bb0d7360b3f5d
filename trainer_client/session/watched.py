"""Requests whose time until the answer stands in a profile of torch, or in a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from ps_wire.operations import NOT_AWAITED
from ps_wire.profiling import ranges

if TYPE_CHECKING:
    from ps_wire.profiling.ranges import Range
    from ps_wire.tracing import Span
    from ps_wire.v1.frames_pb2 import Frame, Reply
    from trainer_client.session.settings import Settings

is_profiled: Final[Callable[[], bool]] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
"""Whether a profiler of torch runs in this thread."""

_LEGACY_AND_KINETO: Final = ("LEGACY", "KINETO")

_OF_GROUPS: Final = {"register", "lookup", "members", "rendezvous"}
"""Operations of the directory, which finds the number of an owner."""


class Watch(NamedTuple):
    """What is noted about one request: its range in the profile of the thread, and its span in a trace, if any."""

    range: Range | None
    span: Span | None

    def answered(self, reply: Reply) -> None:
        """The answer is there."""
        if self.range is not None:
            self.range.end(reply.profile if reply.HasField("profile") else None)
        if self.span is not None:
            self.span.end()

    def failed(self, error: BaseException) -> None:
        """It has failed. Does nothing after an answer."""
        if self.range is not None:
            self.range.end()
        if self.span is not None:
            self.span.fail(error)


def begin(settings: Settings, owner: str, frame: Frame, kind: str, what: str = "") -> Watch | None:
    """Begins to watch a request, and asks the owner to; None if it is neither profiled nor traced."""
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


def begin_operation(settings: Settings, owner: str, frame: Frame) -> Watch | None:
    """Like `begin`, for a request other than a call; None if no caller waits for it, or it finds the owner's number."""
    operation = frame.request.WhichOneof("operation") or ""
    if operation in NOT_AWAITED or operation in _OF_GROUPS:
        return None
    return begin(settings, owner, frame, operation)
