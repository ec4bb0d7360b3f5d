"""Where a call is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ps_wire.refs import CallKey, ContextId


class Recording(NamedTuple):
    """Where a call is recorded.

    Attributes:
        context: Id of the context.
        call: Id of the caller, and number of the call.
        place: The numbers of the calls that it is nested in, and its own number.
    """

    context: ContextId
    call: CallKey
    place: tuple[int, ...] = ()
