"""The recorded call that a value is a result of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ps_wire.refs import CallKey, ContextId


class History(NamedTuple):
    """The recorded call that a value is a result of.

    Attributes:
        context: Id of the context.
        call: The recorded call.
        positions: For each tensor of the value, its position among the call's outputs; None if it has no history.
    """

    context: ContextId
    call: CallKey
    positions: tuple[int | None, ...]
