"""Fields of requests as Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import Ref

if TYPE_CHECKING:
    from ps_service.requests.context import RequestContext


def refs(handles: Any) -> list[Ref]:
    """The references for handles in a request."""
    return [Ref.from_message(handle) for handle in handles]


def options(ctx: RequestContext, message: Any) -> dict[str, Any]:
    """The options in a request.

    Raises:
        InvalidArgumentError: They are no dict with text keys.
    """
    found = ctx.read(message) if message.WhichOneof("kind") else {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InvalidArgumentError("options are a dict with text keys")
    return found
