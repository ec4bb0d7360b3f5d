"""Registered classes, whose instances travel by value.

Both sides register a class with `@by_value`. A message can only name registered classes; the decoder makes instances of
no others.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ps_wire.codec import modules
from ps_wire.codec.names import name_of
from ps_wire.errors import InvalidArgumentError, keep_type

C = TypeVar("C", bound=type)


class Codec(NamedTuple):
    """Converts instances of one class to plain values and back. It `is_record` if it is a dataclass, NamedTuple or
    exception, made by calling the class with its fields, or an enumeration. If `decode` `copies` tensors, each has to
    be sent."""

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    is_record: bool
    copies: bool = False


_BY_CLASS: Final[dict[type, Codec]] = {}
_BY_NAME: Final[dict[str, Codec]] = {}


@overload
def by_value(cls: C) -> C: ...


@overload
def by_value(*, encode: Callable[[Any], Any], decode: Callable[[Any], Any], name: str = "") -> Callable[[C], C]: ...


@overload
def by_value(*, make: Callable[[], nn.Module], name: str = "") -> Callable[[C], C]: ...


def by_value(
    cls: C | None = None,
    *,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
    make: Callable[[], nn.Module] | None = None,
    name: str = "",
) -> C | Callable[[C], C]:
    """Lets instances of a class be arguments and results. Both sides have to import the class.

        @by_value
        @dataclass
        class Batch:
            x: torch.Tensor
            y: torch.Tensor

        by_value(encode=str, decode=Path)(Path)
        by_value(make=lambda: Net(width=64))(Net)

    An exception of a registered class that hosted code raises is a `RemoteError` and an instance of that class in the
    caller. An exception as an argument or result is made by calling its class with its `args`.

    Args:
        cls: A dataclass, NamedTuple, exception or enumeration, when the decorator is used without arguments. An
            instance is made by calling the class with its fields. A member of an enumeration travels by its name.
            A field of a dataclass has the value that was sent, also where `__post_init__` sets one of the same type.
        encode: For any other class: converts an instance to values that can be sent.
        decode: Makes an instance from the result of `encode`.
        make: For a subclass of `nn.Module`: makes a module of that class. What travels is the state of a module, its
            modes, and which parameters are frozen; `make` has to give it the same structure.
        name: Name of the class in messages; empty for its full name.

    Raises:
        TypeError: The class is none of these, and `encode` or `decode` is missing; or `make` is given with them, or for
            a class that is no module.
    """

    def register(cls: C) -> C:
        if make is None:
            functions = _functions(cls, encode, decode)
        elif encode or decode:
            raise TypeError("give either make, or encode and decode")
        elif not issubclass(cls, nn.Module):
            raise TypeError(f"{cls.__qualname__} is no module, and make is for modules")
        else:
            functions = modules.encoded, modules.decoder(cls, make)
        codec = Codec(
            name or name_of(cls), *functions, is_record=encode is None and make is None, copies=make is not None
        )
        add(cls, codec)
        if issubclass(cls, Exception):
            keep_type(cls, codec.name)
        return cls

    return register if cls is None else register(cls)


def add(cls: type, codec: Codec) -> None:
    """Registers the codec of a class."""
    _BY_CLASS[cls] = _BY_NAME[codec.name] = codec


def codec_of(cls: type) -> Codec | None:
    """The codec of a class; None if it is not registered. Subclasses do not inherit it: they may have more fields."""
    return _BY_CLASS.get(cls)


def codec_named(name: str) -> Codec:
    """The codec of the class that is registered under a name."""
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
        return _fields_of(cls), _dataclass_decoder(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return tuple, lambda state: cls(*state)
    if issubclass(cls, Exception):
        return lambda error: error.args, lambda state: cls(*state)
    if issubclass(cls, enum.Flag):
        return lambda flags: flags.value, cls
    if issubclass(cls, enum.Enum):
        return lambda member: member.name, lambda name: cls[name]
    raise TypeError(
        f"{cls.__qualname__} is neither a dataclass nor a NamedTuple nor an exception nor an enumeration: give "
        "by_value() encode and decode"
    )


def _fields_of(cls: Any) -> Callable[[Any], dict[str, Any]]:
    names = [field.name for field in dataclasses.fields(cls)]
    return lambda value: {name: getattr(value, name) for name in names if hasattr(value, name)}


def _dataclass_decoder(cls: type) -> Callable[[Any], Any]:
    """A function that makes instances of a dataclass from its fields. `__post_init__` runs, because it may check what
    arrived. What it computes from values that it has computed before, in the sender, is replaced by what was sent,
    unless it is of another type than can be sent."""
    later = {field.name for field in dataclasses.fields(cls) if not field.init}
    if not later and not hasattr(cls, "__post_init__"):
        return lambda state: cls(**_named(state, cls))

    def decode(state: Any) -> Any:
        sent = _named(state, cls)
        made = cls(**{name: value for name, value in sent.items() if name not in later})
        for name, value in sent.items():
            if not hasattr(made, name) or type(getattr(made, name)) is type(value):
                object.__setattr__(made, name, value)
        return made

    return decode


def _named(state: Any, cls: type) -> dict[str, Any]:
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise InvalidArgumentError(f"what arrived for a {cls.__qualname__} has no named fields")
    return state


# Arrays of numpy travel as tensors.

Array = npt.NDArray[np.generic]


def _tensor_of(array: Array) -> torch.Tensor:
    """A tensor with the shape, dtype and values of an array, in its memory where torch can use that."""
    usable = array.dtype.isnative and array.flags.writeable and all(step >= 0 for step in array.strides)
    try:
        return torch.from_numpy(array if usable else array.astype(array.dtype.newbyteorder("=")))
    except TypeError:
        raise InvalidArgumentError(
            f"a numpy array of dtype {array.dtype} cannot be sent: torch has no such dtype"
        ) from None


def _array_of(tensor: Any) -> Array:
    """The array of a tensor, in the memory of the host; that of a GPU is copied."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"the values of an array are a tensor, not a {type(tensor).__name__}")
    array: Array = tensor.numpy(force=True)
    return array


add(np.ndarray, Codec(name_of(np.ndarray), _tensor_of, _array_of, is_record=False, copies=True))
