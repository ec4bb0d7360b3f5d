"""The named objects on owners that a handle, an optimizer or a scheduler of a program stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from trainer_client.handles.handles import RemoteObject


def named_parts(target: object) -> Sequence[RemoteObject]:
    """The objects behind what has the method `__ps_objects__`. Raises `InvalidArgumentError` for what has none, or none
    with a name."""
    behind = getattr(target, "__ps_objects__", None)
    if behind is None:
        raise InvalidArgumentError(f"give the name of an object, or a handle to one, and not {target!r}")
    parts: Sequence[RemoteObject] = behind()
    if not parts or not all(each.name for each in parts):
        raise InvalidArgumentError(
            f"{target!r} has no name: only what has one moves or is deleted, and other objects go with their last "
            "handle"
        )
    return parts
