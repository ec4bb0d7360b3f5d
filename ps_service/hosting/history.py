"""Which recorded call a value is a result of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ps_wire.refs import CallKey, ContextId


class History(NamedTuple):
    """What a kept value is a result of.

    Attributes:
        context: The pass.
        call: The recorded call in it.
        positions: For each tensor of the value, its place among the call's outputs; None where it has no history.
    """

    context: ContextId
    call: CallKey
    positions: tuple[int | None, ...]
