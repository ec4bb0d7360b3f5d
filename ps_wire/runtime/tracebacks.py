"""Tracebacks of errors as programs see them: with their own frames, and without most of ours."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Final, TypeVar

from ps_wire.errors import PsError

_PACKAGES: Final = ("trainer_client", "ps_wire", "ps_service")

IS_SHORT = not (sys.flags.dev_mode or bool(os.environ.get("PYTHONASYNCIODEBUG")))
"""Whether frames are left out: not in the debug mode of asyncio."""

E = TypeVar("E", bound=BaseException)


def shortened(error: E) -> E:
    """Leaves frames of this project out of the traceback of an error that goes to the program.

    The frames of others stay. An error of this project says all in its text, so none of ours stays for it. Another that
    was raised in our code keeps that frame, because it may be a fault of ours.
    """
    if not IS_SHORT:
        return error
    kept: list[TracebackType] = []
    trace = error.__traceback__
    while trace is not None:
        is_ours = trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES
        if not is_ours or (trace.tb_next is None and not isinstance(error, PsError)):
            kept.append(trace)
        trace = trace.tb_next
    last: TracebackType | None = None
    for each in reversed(kept):
        last = TracebackType(last, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return error.with_traceback(last)
