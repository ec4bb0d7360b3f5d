"""Messages as what JSON has, with counts as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message as BaseMessage

if TYPE_CHECKING:
    from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """The fields of a message, also those with default values, as what JSON has.

    Integers of 64 bits are numbers here. Protobuf's own JSON has them as strings. A field that may be absent and is has
    no entry.
    """
    found = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        found[field.name] = _plain(getattr(message, field.name))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return plain(value)
    if isinstance(value, (str, int, float, bool)):
        return value
    return [_plain(each) for each in value]
