"""Codecs of a program's own: a pair of functions that both sides register under the same name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from ps_wire.compression.codec import Codec, State
from ps_wire.compression.encoded import Encoded
from ps_wire.errors import InvalidArgumentError


class Pair(Protocol):
    """What a program registers: an object, a class, or a module with these two functions."""

    def encode(self, tensor: torch.Tensor, /) -> Any:
        """Values of a gradient that can be sent: plain values, tensors, and lists, tuples and dicts of them."""

    def decode(self, code: Any, /) -> torch.Tensor:
        """The tensor, from these values. They may come from anywhere, so it checks them before it allocates."""


_PAIRS: Final[dict[str, Pair]] = {}


def keep_pair(name: str, pair: Pair) -> None:
    """Registers a pair under a name; a pair that had it before is replaced."""
    _PAIRS[name] = pair


@dataclass(frozen=True)
class Own(Codec):
    """A registered pair, by its name. What it takes, and how close the result is, is the pair's own affair.

    Args:
        name: The name that it was registered under.
    """

    name: str

    takes_sparse = True
    dtypes = frozenset()

    def parameters(self) -> dict[str, Any]:
        """None besides the name."""
        return {}

    def encode(self, tensor: torch.Tensor, state: State | None = None) -> Encoded:
        """Like `Codec.encode`, with the registered function; it has no state.

        Raises:
            InvalidArgumentError: No pair of that name is registered in this process.
        """
        return Encoded(self.name, {"code": self._pair().encode(tensor.detach())})

    def decode(self, encoded: Encoded, like: torch.Tensor) -> torch.Tensor:
        """Like `Codec.decode`, with the registered function. Its result must have shape and dtype of `like`.

        Raises:
            InvalidArgumentError: No pair of that name is registered in this process, its function raised an exception,
                or returned something else.
        """
        pair = self._pair()
        if encoded.parameters.keys() != {"code"} or encoded.tensors or encoded.coordinates:
            raise InvalidArgumentError(f"what arrived for the codec {self.name!r} is not what `encode` returned there")
        try:
            result = pair.decode(encoded.parameters["code"])
        except Exception as error:
            raise InvalidArgumentError(f"the codec {self.name!r} could not decode what arrived: {error!r}") from error
        return same_form(result, like, f"the codec {self.name!r}").to(like.device)

    def known(self) -> None:
        """Checks that the name is registered.

        Raises:
            InvalidArgumentError: It is not, in this process.
        """
        self._pair()

    def _encode(self, values: torch.Tensor, state: State) -> Sequence[torch.Tensor]:
        raise NotImplementedError

    def _decode(self, parts: Sequence[torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        raise NotImplementedError

    def _pair(self) -> Pair:
        try:
            return _PAIRS[self.name]
        except KeyError:
            raise InvalidArgumentError(
                f"no codec {self.name!r} is known in this process: import the module that calls register_codec()"
            ) from None


def same_form(result: Any, like: torch.Tensor, source: str) -> torch.Tensor:
    """The tensor itself, if it is dense or COO and has shape and dtype of another.

    Raises:
        InvalidArgumentError: It has not.
    """
    if not isinstance(result, torch.Tensor) or result.layout not in (torch.strided, torch.sparse_coo):
        raise InvalidArgumentError(f"{source} gave no dense or COO tensor")
    if result.shape != like.shape or result.dtype is not like.dtype:
        raise InvalidArgumentError(
            f"{source} gave {result.dtype} of shape {tuple(result.shape)} for {like.dtype} of shape {tuple(like.shape)}"
        )
    return result
