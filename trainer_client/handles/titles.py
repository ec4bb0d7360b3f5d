"""Names of what a call calls, for messages, profiles and traces."""

from __future__ import annotations


def kind_of(target: object, method: str) -> str:
    """What a call calls, for profiles and traces, which count calls of the same name: without the id of the object."""
    if isinstance(target, str):
        return target
    class_name = getattr(target, "class_name", "")
    return ".".join(filter(None, (class_name, method or "forward")))


def title_of(target: object, method: str) -> str:
    """What a call calls, for messages and profiles."""
    return target if isinstance(target, str) else f"{getattr(target, 'class_name', target)}.{method or 'forward'}"
