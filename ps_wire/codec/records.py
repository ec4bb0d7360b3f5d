"""Registered classes, whose instances travel by value.

Both sides register a class with `@by_value`. A message can only name registered classes; the decoder makes instances of
no others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, overload

from ps_wire.codec.names import name_of
from ps_wire.errors import InvalidArgumentError, keep_type

C = TypeVar("C", bound=type)


class Codec(NamedTuple):
    """Converts instances of one class to plain values and back.

    Attributes:
        name: Name of the class in messages.
        encode: Converts an instance to values that can be sent.
        decode: Makes an instance from them.
        is_record: Whether it is a dataclass, NamedTuple or exception, made by calling the class with its fields.
    """

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    is_record: bool


_BY_CLASS: Final[dict[type, Codec]] = {}
_BY_NAME: Final[dict[str, Codec]] = {}


@overload
def by_value(cls: C) -> C: ...


@overload
def by_value(*, encode: Callable[[Any], Any], decode: Callable[[Any], Any], name: str = "") -> Callable[[C], C]: ...


def by_value(
    cls: C | None = None,
    *,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    name: str = "",
) -> C | Callable[[C], C]:
    """Lets instances of a class be arguments and results. Both sides have to import the class.

        @by_value
        @dataclass
        class Batch:
            x: torch.Tensor
            y: torch.Tensor

        by_value(encode=str, decode=Path)(Path)

    An exception of a registered class that hosted code raises is a `RemoteError` and an instance of that class in the
    caller. An exception as an argument or result is made by calling its class with its `args`.

    Args:
        cls: A dataclass, NamedTuple or exception, when the decorator is used without arguments. An instance is made by
            calling the class with its fields.
        encode: For any other class: converts an instance to values that can be sent.
        decode: Makes an instance from the result of `encode`.
        name: Name of the class in messages; empty for its full name.

    Raises:
        TypeError: The class is no dataclass, NamedTuple or exception, and `encode` or `decode` is missing.
    """

    def register(cls: C) -> C:
        codec = Codec(name or name_of(cls), *_functions(cls, encode, decode), is_record=encode is None)
        _BY_CLASS[cls] = _BY_NAME[codec.name] = codec
        if issubclass(cls, Exception):
            keep_type(cls, codec.name)
        return cls

    return register if cls is None else register(cls)


def codec_of(cls: type) -> Codec | None:
    """The codec of a class; None if it is not registered. Subclasses do not inherit it: they may have more fields."""
    return _BY_CLASS.get(cls)


def codec_named(name: str) -> Codec:
    """The codec of the class that is registered under a name.

    Raises:
        InvalidArgumentError: No class is registered under that name.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise InvalidArgumentError(
            f"a {name} arrived, which is not registered in this process: import its module, and decorate it "
            "with @by_value"
        ) from None


def _functions(
    cls: type, encode: Callable[[Any], Any] | None, decode: Callable[[Any], Any] | None
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if encode is not None and decode is not None:
        return encode, decode
    if dataclasses.is_dataclass(cls):
        fields = [field.name for field in dataclasses.fields(cls) if field.init]
        return _fields_of(fields), lambda state: cls(**_named(state, cls))
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return tuple, lambda state: cls(*state)
    if issubclass(cls, Exception):
        return lambda error: error.args, lambda state: cls(*state)
    raise TypeError(
        f"{cls.__qualname__} is neither a dataclass nor a NamedTuple nor an exception: give by_value() encode and "
        "decode"
    )


def _fields_of(names: list[str]) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: getattr(value, name) for name in names}


def _named(state: Any, cls: type) -> dict[str, Any]:
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise InvalidArgumentError(f"what arrived for a {cls.__qualname__} has no named fields")
    return state
