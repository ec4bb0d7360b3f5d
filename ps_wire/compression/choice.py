"""Chooses the codec of a parameter by its name and size."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

import torch

from ps_wire.compression.codec import Codec
from ps_wire.compression.registry import codec_named
from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import check_whole
from ps_wire.shown import shown

DEFAULT: Final = "default"
"""The key of the codec for parameters that no pattern matches."""

MIN_NUMEL: Final = 1024
"""Elements below which a tensor is sent as it is, unless a choice says otherwise."""


class Choice:
    """Which codec a parameter has.

        Choice(TopK(0.01))
        Choice({"embedding.*": None, "*.bias": FP16(), "default": TopK(0.01)}, min_numel=4096)

    The keys of a mapping are patterns for whole names, as in `fnmatch`: `*`, `?`, `[seq]`. Case matters, and `*`
    matches dots, too. **The first pattern that matches, in the order of the mapping, decides.** So special patterns
    stand before general ones. "default" is no pattern: it applies where none matches, wherever it stands. Without it
    these parameters are sent as they are.

    A tensor is also sent as it is if it has fewer than `min_numel` elements (for a sparse one: values), or if its codec
    does not take its dtype or layout. So `TopK(0.01)` as the default leaves sparse gradients and integers as they are.

    Args:
        codecs: A codec, the name of a registered one, None for no compression, or a mapping of these.
        min_numel: The smallest number of elements that are encoded.

    Raises:
        InvalidArgumentError: Something else was given, or the name of a codec that is not registered.
    """

    def __init__(
        self, codecs: Codec | str | Mapping[str, Codec | str | None] | None = None, min_numel: int = MIN_NUMEL
    ) -> None:
        check_whole("min_numel", min_numel, 0, 1 << 62)
        self._min_numel = min_numel
        entries = dict(codecs) if isinstance(codecs, Mapping) else {DEFAULT: codecs}
        if not all(isinstance(pattern, str) for pattern in entries):
            raise InvalidArgumentError("the keys of a choice of codecs are patterns for names of parameters")
        made = {pattern: _codec_of(entry) for pattern, entry in entries.items()}
        self._default = made.pop(DEFAULT, None)
        self._patterns = tuple(made.items())

    def __repr__(self) -> str:
        shown = {**dict(self._patterns), DEFAULT: self._default}
        return f"Choice({shown}, min_numel={self._min_numel})"

    @property
    def codecs(self) -> list[Codec]:
        """The codecs that may be chosen."""
        return [each for each in (*dict(self._patterns).values(), self._default) if each is not None]

    def codec_for(self, name: str, tensor: torch.Tensor) -> Codec | None:
        """The codec for a parameter or its gradient; None to send it as it is."""
        codec = next((each for pattern, each in self._patterns if fnmatchcase(name, pattern)), self._default)
        if codec is None or not codec.takes(tensor):
            return None
        held = tensor._values() if tensor.layout is torch.sparse_coo else tensor
        return codec if held.numel() >= self._min_numel else None


Compress = Codec | str | Mapping[str, Codec | str | None] | Choice | None
"""Codecs for gradients; see `Choice`."""


def choice_of(compress: Compress) -> Choice:
    """The choice of codecs. Raises `InvalidArgumentError` if it is none."""
    return compress if isinstance(compress, Choice) else Choice(compress)


def _codec_of(entry: Codec | str | None) -> Codec | None:
    if entry is None or isinstance(entry, Codec):
        return entry
    if isinstance(entry, str):
        return codec_named(entry)
    raise InvalidArgumentError(f"{shown(entry)} is no codec, no name of one, and not None")
