"""Finds messages inside of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)


def messages_in(message: Message, kind: type[M]) -> Iterator[M]:
    """All messages of a type in another one, which may be changed there; but for those inside of such a message,
    and in maps."""
    if isinstance(message, kind):
        yield message
        return
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from messages_in(value, kind)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for item in value:
                yield from messages_in(item, kind)
