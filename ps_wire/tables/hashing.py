"""A published 64-bit mix of integers, vectorised with numpy."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

GOLDEN: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, as an odd number: the increment of SplitMix64."""

FIRST: Final = 0xBF58476D1CE4E5B9
SECOND: Final = 0x94D049BB133111EB
"""The factors of the finalizer."""

_MASK: Final = (1 << 64) - 1


def mix(words: npt.NDArray[Any], salt: int = 0) -> Words:
    """Mixes each word, int64 or uint64, so that every bit of it changes half of the bits of the result.

    The output function of SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA 2014), which is variant 13 of D. Stafford's finalizers of MurmurHash3. It is a bijection. The
    salt is added to every word first; other salts give other, unrelated results.
    """
    mixed = words.view(np.uint64) + np.uint64(salt & _MASK)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(FIRST)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(SECOND)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def mix_one(word: int, salt: int = 0) -> int:
    """The same of one number, between 0 and 2^64 - 1."""
    return int(mix(np.array([word & _MASK], np.uint64), salt)[0])
