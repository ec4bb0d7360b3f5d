"""The titles of requests in messages to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ps_wire.errors import PsError
from ps_wire.refs import Ref

if TYPE_CHECKING:
    from ps_service.engine import Engine


_MAKE: Final = ("create", "optimizer", "scheduler")
"""The operations that run the constructor of a class that the request names."""


def title(engine: Engine, operation: str, request: Any) -> str:
    """The name of the function that a request runs, as far as it is known before it runs."""
    if operation in _MAKE:
        return f"the constructor of {request.class_name}"
    if operation != "call":
        return f"a {operation}"
    if request.function:
        return str(request.function)
    try:
        class_name = engine.registry.find(Ref.from_message(request.target)).class_name
    except PsError:
        class_name = "an object that is gone"
    return f"{class_name}.{request.method or 'forward'}"


def named_title(engine: Engine, operation: str, request: Any) -> str:
    """The title of a request, with the name of the object that it is for, if that has one."""
    text = title(engine, operation, request)
    for field in ("target", "optimizer"):
        if field in request.DESCRIPTOR.fields_by_name and request.HasField(field):
            try:
                name = engine.registry.find(Ref.from_message(getattr(request, field))).name
            except PsError:
                name = ""
            return f"{text} of {name!r}" if name else text
    name = getattr(request, "name", "")
    return f"{text} for {name!r}" if name else text
