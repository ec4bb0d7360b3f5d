"""Reads dataclasses from messages that have fields of the same names."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import asdict, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from google.protobuf.message import Message


class Readable:
    """Reads the fields of a dataclass from a message that has fields of the same names."""

    __slots__ = ()

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """The content of a message. A field that is absent and may be is None."""
        of: Any = cls
        return cls(**{name: read(message) for name, read in _readers(of)})

    def as_plain(self) -> dict[str, Any]:
        """The content as what JSON has: dicts, lists, numbers, strings, bools and None."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # every subclass is a dataclass


@functools.cache
def _readers(cls: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """For each field its name, and what reads it from a message."""
    known = typing.get_type_hints(cls)
    return [(each.name, _reader(each.name, known[each.name])) for each in fields(cls)]


def _reader(name: str, kind: Any) -> Callable[[Any], Any]:
    """What reads a field of a message, as the type of the field of the dataclass says."""
    get = attrgetter(name)
    origin = typing.get_origin(kind)
    if origin is types.UnionType:
        return lambda message: get(message) if message.HasField(name) else None
    if origin is dict:
        return lambda message: dict(sorted(get(message).items()))
    if origin is tuple:
        of = typing.get_args(kind)[0]
        if issubclass(of, Readable):
            return lambda message: tuple(map(of.from_message, get(message)))
        return lambda message: tuple(get(message))
    return get
