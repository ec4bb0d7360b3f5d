"""What a named object was made from, in short: to tell whether a later request asks for the same."""

from __future__ import annotations

import hashlib
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import torch

_SHOWN: Final = 4
_MAX_NAMES: Final = 64


class _Texts(reprlib.Repr):
    """Short texts of values; of tensors, only their type and shape."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr_Tensor(self, tensor: torch.Tensor, level: int) -> str:
        return f"a tensor of {tensor.dtype} {tuple(tensor.shape)}"


_TEXTS: Final = _Texts()


class Fingerprint(NamedTuple):
    """The class and the arguments of a request for a named object: a digest that identifies them, and short texts of
    the arguments by name, for messages. Two that differ may have the same text."""

    digest: bytes = b""
    arguments: Mapping[str, str] = {}

    @classmethod
    def of(cls, parts: Iterable[bytes | memoryview], arguments: Mapping[str, Any]) -> Fingerprint:
        """The fingerprint of the bytes of a request, and of its arguments by name."""
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        texts = {name: _TEXTS.repr(value) for name, value in list(arguments.items())[:_MAX_NAMES]}
        return cls(digest.digest(), texts)

    def difference(self, asked: Fingerprint) -> str:
        """Says how a request differs from the one that the object was made from, with both values."""
        names = [*self.arguments, *(name for name in asked.arguments if name not in self.arguments)]
        texts = [(name, self.arguments.get(name), asked.arguments.get(name)) for name in names]
        told = [_told(name, made, wanted) for name, made, wanted in texts if made != wanted]
        if not told:
            return "made with other arguments"
        rest = f", and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
        return f"made with {', '.join(told[:_SHOWN])}{rest}"


NO_FINGERPRINT: Final = Fingerprint()
"""That of objects that no later request asks for by name."""


def _told(name: str, made: str | None, wanted: str | None) -> str:
    if made is None:
        return f"no {name}, not {name}={wanted}"
    return f"{name}={made}, not {wanted}" if wanted is not None else f"{name}={made}, which was not given now"
