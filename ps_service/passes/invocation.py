"""What a request asks of a call."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from ps_service.passes.arguments import Arguments
    from ps_wire.refs import CallKey, ContextId


class Keep(enum.Enum):
    """Whether the result of a call stays on this owner."""

    NO = enum.auto()
    REFERENCE = enum.auto()
    """It stays, unless it is a reference already, and a reference to it is returned."""
    VALUE = enum.auto()
    """It stays, so that later calls can get its value as an argument."""


# Looking a member up in its class would take longer.
NO: Final = Keep.NO
REFERENCE: Final = Keep.REFERENCE
VALUE: Final = Keep.VALUE


class Recording(NamedTuple):
    """Where a call is recorded. `place` has the numbers of the calls that it is nested in, and its own number."""

    context: ContextId
    call: CallKey
    place: tuple[int, ...] = ()


class Invocation(NamedTuple):
    """What a request asks of a call.

    `arguments` has read `args` and `kwargs`. Without `training`, each module runs in the mode that it has here; a
    function gets modules in evaluation mode if `training` is false, and otherwise in their own. Without `recording`,
    the call is not recorded.
    """

    arguments: Arguments
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: bool | None
    recording: Recording | None = None
    keep: Keep = NO
