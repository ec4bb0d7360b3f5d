"""The codecs by their names: those of this package, and those that a program registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import torch

from ps_wire.codec.records import by_value
from ps_wire.compression.encoded import Encoded
from ps_wire.compression.floats import BF16, FP16
from ps_wire.compression.int8 import Int8
from ps_wire.compression.own import Own, Pair, keep_pair, same_form
from ps_wire.compression.powersgd import PowerSGD
from ps_wire.compression.randomk import RandomK
from ps_wire.compression.sign import Sign
from ps_wire.compression.topk import TopK
from ps_wire.compression.zstd import Zstd
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_wire.compression.codec import Codec

CLASSES: Final[dict[str, type[Codec]]] = {
    cls.name: cls for cls in (FP16, BF16, Int8, TopK, RandomK, Sign, PowerSGD, Zstd)
}
"""The codecs of this package."""


by_value(encode=Encoded.to_value, decode=Encoded.from_value, name="Encoded")(Encoded)


def register_codec(name: str, codec: Pair) -> None:
    """Registers a codec of a program's own. Both sides have to do so, before the first message that names it.

        class Rows:
            @staticmethod
            def encode(tensor): return {"shape": tensor.shape, "mean": tensor.mean().item()}
            @staticmethod
            def decode(code): return torch.full(code["shape"], code["mean"])

        register_codec("rows", Rows)

    It is then chosen by its name: `Choice({"default": "rows"})`. `decode` gets values from other processes: it has to
    check sizes before it allocates. Shape and dtype of its result are compared with the receiver's own tensor.

    Args:
        name: Its name. A codec that was registered under it before is replaced.
        codec: An object with the functions `encode(tensor)` and `decode(code)`.

    Raises:
        InvalidArgumentError: The name is empty or that of a codec of this package, or a function is missing.
    """
    if not isinstance(name, str) or not name or name in CLASSES:
        raise InvalidArgumentError(f"{name!r} cannot be the name of an own codec; these are taken: {sorted(CLASSES)}")
    if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
        raise InvalidArgumentError(f"the codec {name!r} needs the functions encode(tensor) and decode(code)")
    keep_pair(name, codec)


def codec_named(name: str, parameters: Mapping[str, Any] | None = None) -> Codec:
    """The codec of a name and plain parameters, as they stand in messages.

    Raises:
        InvalidArgumentError: No such codec is known in this process, or it has no such parameters.
    """
    cls = CLASSES.get(name)
    parameters = parameters or {}
    if cls is None:
        own = Own(name)
        if parameters:
            raise InvalidArgumentError(f"the codec {name!r} has no parameters")
        own.known()
        return own
    known = {each.name for each in fields(cls) if each.metadata.get("wire", True)}  # type: ignore[arg-type]
    if not parameters.keys() <= known:
        raise InvalidArgumentError(f"the codec {name} has the parameters {sorted(known)}, not {sorted(parameters)}")
    try:
        return cls(**parameters)
    except TypeError as error:
        raise InvalidArgumentError(f"the codec {name} cannot be made of these parameters: {error}") from None


def decode(value: torch.Tensor | Encoded, like: torch.Tensor) -> torch.Tensor:
    """The tensor that a sender encoded with any known codec, or sent as it is.

    Args:
        value: What arrived. It may come from anywhere.
        like: The receiver's own tensor, which gives shape, dtype and device.

    Raises:
        InvalidArgumentError: It does not fit that tensor, or names a codec that is not known in this process.
    """
    if isinstance(value, torch.Tensor):
        return same_form(value, like, "the message").to(like.device)
    if value.codec in CLASSES:
        return codec_named(value.codec, value.parameters).decode(value, like)
    return codec_named(value.codec).decode(value, like)
