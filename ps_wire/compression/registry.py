"""The codecs by their names: those of this package, and those that a program registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

from ps_wire.codec.records import by_value
from ps_wire.compression.codec import LOCAL, Codec, Encoded, State, sent_fields
from ps_wire.compression.powersgd import PowerSGD
from ps_wire.compression.quantizers import BF16, FP16, Int8, Sign
from ps_wire.compression.sparsifiers import RandomK, TopK
from ps_wire.compression.zstd import Zstd
from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError

CLASSES: Final[dict[str, type[Codec]]] = {
    cls.name: cls for cls in (FP16, BF16, Int8, TopK, RandomK, Sign, PowerSGD, Zstd)
}
"""The codecs of this package."""

by_value(encode=Encoded.to_value, decode=Encoded.from_value, name="Encoded")(Encoded)


class Pair(Protocol):
    """What a program registers: an object, a class, or a module with these two functions."""

    def encode(self, tensor: torch.Tensor, /) -> Any:
        """Values of a gradient that can be sent: plain values, tensors, and lists, tuples and dicts of them."""

    def decode(self, code: Any, /) -> torch.Tensor:
        """The tensor, from these values. They may come from anywhere, so it checks them before it allocates."""


_PAIRS: Final[dict[str, Pair]] = {}


@dataclass(frozen=True)
class Own(Codec):
    """A registered pair, by its name. What it takes, and how close the result is, is the pair's own affair."""

    name: str = field(metadata=LOCAL)

    takes_sparse = True
    dtypes = frozenset()

    def encode(self, tensor: torch.Tensor, state: State | None = None) -> Encoded:
        """Like `Codec.encode`, with the registered function; it has no state."""
        # A copy: what the function returns may be the tensor itself, or a part of it.
        return Encoded(self.name, {"code": _pair(self.name).encode(tensor.detach().clone())})

    def decode(self, encoded: Encoded, like: torch.Tensor) -> torch.Tensor:
        """Like `Codec.decode`, with the registered function. Its result must have shape and dtype of `like`."""
        pair = _pair(self.name)
        if encoded.parameters.keys() != {"code"} or encoded.tensors or encoded.coordinates:
            raise InvalidArgumentError(f"what arrived for the codec {self.name!r} is not what `encode` returned there")
        try:
            result = pair.decode(encoded.parameters["code"])
        except Exception as error:
            raise InvalidArgumentError(f"the codec {self.name!r} could not decode what arrived: {error!r}") from error
        return _same_form(result, like, f"the codec {self.name!r}").to(like.device)


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
    _PAIRS[name] = codec


def codec_named(name: str, parameters: Mapping[str, Any] | None = None) -> Codec:
    """The codec of a name and plain parameters, as in messages; an `InvalidArgumentError` if it is not known here."""
    cls = CLASSES.get(name)
    parameters = parameters or {}
    if cls is None:
        if parameters:
            raise InvalidArgumentError(f"the codec {name!r} has no parameters")
        _pair(name)
        return Own(name)
    known = set(sent_fields(cls))
    if not parameters.keys() <= known:
        raise InvalidArgumentError(f"the codec {name} has the parameters {sorted(known)}, not {sorted(parameters)}")
    try:
        return cls(**parameters)
    except TypeError as error:
        raise InvalidArgumentError(f"the codec {name} cannot be made of these parameters: {error}") from None


def encode(codec: Codec, value: torch.Tensor) -> torch.Tensor | Encoded:
    """What to send for a value without error feedback: itself if the codec does not take it or what is not finite."""
    if not codec.takes(value):
        return value
    try:
        encoded = codec.encode(value)
    except NonFiniteGradientError:
        return value
    # Magnitudes beyond the range of float16 would become infinite.
    if isinstance(codec, FP16) and not all(bool(torch.isfinite(each).all()) for each in encoded.tensors):
        return value
    return encoded


def decode(value: torch.Tensor | Encoded, like: torch.Tensor) -> torch.Tensor:
    """The tensor that a sender encoded with any known codec, or sent as it is. A codec that is not known in this
    process, or another shape or dtype than that of the receiver's own tensor, is an `InvalidArgumentError`."""
    if isinstance(value, torch.Tensor):
        return _same_form(value, like, "the message").to(like.device)
    return codec_named(value.codec, value.parameters if value.codec in CLASSES else None).decode(value, like)


_SUITABLE = (FP16, BF16, Int8, Zstd, Own)
"""Codecs without error feedback, for values that replace those of the receiver, and for gradients of rows of tables."""


def check_suitable(codec: Codec) -> None:
    """Checks that a codec sends every element of a parameter, each within a bound of its own, and none later."""
    if not isinstance(codec, _SUITABLE):
        raise InvalidArgumentError(
            f"{codec} leaves most of a gradient to later messages. Pulled values replace parameters, so what it leaves "
            "out would be lost, unless the owner kept a copy of the model for each replica, which it does not. "
            "Compress pulls with BF16, FP16, Int8 or Zstd"
        )


def check_suitable_for_rows(codec: Codec) -> None:
    """Checks that a codec suits gradients of rows of tables: that no error feedback has to bring the rest later."""
    if not isinstance(codec, _SUITABLE):
        raise InvalidArgumentError(
            f"{codec} leaves most of a gradient to later messages, by error feedback. Rows of a table have none: a "
            "residual for each row that a trainer has ever looked up would be a copy of the table there. Compress the "
            "gradients of rows with BF16, FP16, Int8 or Zstd"
        )


def _pair(name: str) -> Pair:
    try:
        return _PAIRS[name]
    except KeyError:
        raise InvalidArgumentError(
            f"no codec {name!r} is known in this process: import the module that calls register_codec()"
        ) from None


def _same_form(result: Any, like: torch.Tensor, source: str) -> torch.Tensor:
    """The tensor itself, if it is dense or COO and has shape and dtype of another."""
    if not isinstance(result, torch.Tensor) or result.layout not in (torch.strided, torch.sparse_coo):
        raise InvalidArgumentError(f"{source} gave no dense or COO tensor")
    if result.shape != like.shape or result.dtype is not like.dtype:
        raise InvalidArgumentError(
            f"{source} gave {result.dtype} of shape {tuple(result.shape)} for {like.dtype} of shape {tuple(like.shape)}"
        )
    return result
