"""Fields of requests as Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import check_seconds
from ps_wire.refs import ContextId, Ref

if TYPE_CHECKING:
    from ps_service.requests.context import RequestContext


def context_id(request: Any) -> ContextId:
    """The context in a request. Raises `InvalidArgumentError` if it is no name of one."""
    message = request.context
    id = ContextId(message.trainer, message.number)
    if len(id.trainer) != 16 or not id.number:
        raise InvalidArgumentError("a context is named by the 16 bytes of its trainer, and a number from 1 on")
    return id


def wait_seconds(request: Any) -> float:
    """How many seconds a request may wait for others. Raises `InvalidArgumentError` if it is no time."""
    check_seconds("wait_seconds", request.wait_seconds)
    return float(request.wait_seconds)


def refs(handles: Any) -> list[Ref]:
    """The references for handles in a request."""
    return [Ref.from_message(handle) for handle in handles]


def options(ctx: RequestContext, message: Any) -> dict[str, Any]:
    """The options in a request. Raises `InvalidArgumentError` if they are no dict with text keys."""
    found = ctx.read(message) if message.WhichOneof("kind") else {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InvalidArgumentError("options are a dict with text keys")
    return found
