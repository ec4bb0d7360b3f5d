"""Which identifiers have similar vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

SHOWN: Final = ("width", "stdin", "min", "encode", "month", "dirname", "acquire", "host", "append", "__enter__")
"""Identifiers whose neighbours are shown, if they occur."""

PARTNERS: Final = (
    *(("width", "height"), ("min", "max"), ("stdin", "stdout"), ("encode", "decode"), ("x", "y"), ("row", "col")),
    *(("read", "write"), ("left", "right"), ("host", "port"), ("dirname", "basename"), ("hour", "minute")),
    *(("start", "stop"), ("real", "imag"), ("__enter__", "__exit__"), ("append", "extend"), ("year", "month")),
    *(("acquire", "release"), ("username", "password"), ("keys", "values"), ("setUp", "tearDown")),
)
"""Identifiers that belong together: what a reader of Python would say, written down before any training."""


class Neighbours:
    """Compares vectors by the cosine of their angle.

    Args:
        tokens: Identifiers.
        vectors: Their vectors, [n, dim].
    """

    def __init__(self, tokens: Sequence[str], vectors: Tensor) -> None:
        self._tokens = list(tokens)
        self._places = {token: place for place, token in enumerate(tokens)}
        self._directions = functional.normalize(vectors, dim=1)

    def nearest(self, token: str, count: int = 6) -> list[str]:
        """The identifiers that are most similar to one, the most similar first; none if it is not known."""
        if token not in self._places:
            return []
        place = self._places[token]
        similar = self._directions @ self._directions[place]
        similar[place] = -torch.inf
        order = similar.topk(min(count, len(self._tokens) - 1)).indices
        return [self._tokens[each] for each in order.tolist()]

    def found(self, pairs: Iterable[tuple[str, str]] = PARTNERS, among: int = 10) -> tuple[int, int]:
        """How many pairs have the second among the nearest of the first, and how many pairs are known."""
        known = [(first, second) for first, second in pairs if {first, second} <= self._places.keys()]
        return sum(second in self.nearest(first, among) for first, second in known), len(known)
