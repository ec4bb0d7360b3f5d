"""Serializers for gRPC that count bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from ps_wire.connections.connection import Traffic

T = TypeVar("T")


def reading(parse: Callable[[bytes], T], traffic: Traffic) -> Callable[[bytes], T]:
    """A deserializer whose bytes are counted as received."""

    def counted(data: bytes) -> T:
        traffic.received += len(data)
        return parse(data)

    return counted


def writing(serialize: Callable[[T], bytes], traffic: Traffic) -> Callable[[T], bytes]:
    """A serializer whose bytes are counted as sent."""

    def counted(message: T) -> bytes:
        data = serialize(message)
        traffic.sent += len(data)
        return data

    return counted
