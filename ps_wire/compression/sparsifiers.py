"""Some of the elements, and where they stand: TopK sends the largest, RandomK any, at positions made of two numbers."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import numpy as np
import torch

from ps_wire.compression import checks
from ps_wire.compression.codec import LOCAL, Codec, Encoded, State, index_dtype, vector, work_dtype
from ps_wire.compression.pieces import ELEMENTS, pieces, scratch_for
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.seeds import derived

_SAMPLE: Final = 1 << 15
_STRIDE: Final = 2_654_435_761
"""A prime, so that multiples of it visit a vector evenly."""


@dataclass(frozen=True)
class TopK(Codec):
    """The k = ceil(fraction n) elements of largest magnitude, with their positions: 4 bytes (8 above 2^31 elements) and
    the size of an element for each.

    y_i = x_i for these, and 0 elsewhere. So ||y - x||^2 <= (1 - k/n) ||x||^2. Among elements of the same magnitude any
    are sent; the count is always k. NaN and infinity count as the largest, and are refused by `encode`. Dense tensors.
    With a small fraction it needs error feedback to converge.

    Sources: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Stich et al.,
    "Sparsified SGD with Memory", NeurIPS 2018. The threshold is estimated from a sample, and the count is exact, as in
    Lin et al., "Deep Gradient Compression", ICLR 2018.

    Args:
        fraction: The part of the elements that is sent.

    Raises:
        InvalidArgumentError: `fraction` is not above 0 and at most 1.
    """

    fraction: float

    name = "topk"

    def __post_init__(self) -> None:
        checks.fraction(self.fraction)

    def _encode(self, values: torch.Tensor, state: State) -> Sequence[torch.Tensor]:
        flat = vector(values)
        positions = _largest(flat, checks.share(self.fraction, flat.numel()))
        chosen = flat[positions]
        checks.refuse_non_finite(checks.finite(chosen), self.name)
        return positions.to(index_dtype(flat.numel())), chosen

    def _decode(self, parts: Sequence[torch.Tensor], shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        checks.number_of(parts, 2, self.name)
        numel = shape.numel()
        count = checks.share(self.fraction, numel)
        positions = checks.flat(parts[0], index_dtype(numel), count, "the positions of topk")
        values = checks.flat(parts[1], dtype, count, "the values of topk")
        checks.finite_values(values)
        if count and not (positions[0].item() >= 0 and positions[-1].item() < numel):
            raise InvalidArgumentError(f"a position is outside of the {numel} elements")
        if not (positions[1:] > positions[:-1]).all():
            raise InvalidArgumentError("the positions are not in ascending order")
        result = torch.zeros(numel, dtype=dtype, device="cpu")
        result[positions.to(torch.int64)] = values
        return result.view(shape)

    def take_out(self, encoded: Encoded, residual: torch.Tensor, like: torch.Tensor) -> None:
        """Subtracts the values that are sent, at their positions only."""
        positions, values = encoded.tensors
        at, flat = positions.to(residual.device, torch.int64), residual.view(-1)
        flat[at] = flat[at] - values.to(residual.device, residual.dtype)


def _largest(flat: torch.Tensor, count: int) -> torch.Tensor:
    """The positions of the `count` elements of largest magnitude, ascending; NaN counts as the largest."""
    numel = flat.numel()
    expected = _SAMPLE * count / max(numel, 1)
    rank = math.ceil(expected + 4 * math.sqrt(expected)) + 8
    if count and numel > 4 * _SAMPLE and rank < _SAMPLE // 4:
        sample = (
            flat[torch.arange(_SAMPLE, device="cpu").mul_(_STRIDE).remainder_(numel)].to(work_dtype(flat.dtype)).abs_()
        )
        threshold = torch.topk(sample, rank, sorted=False).values.min().item()
        least = torch.finfo(sample.dtype).smallest_normal * torch.finfo(sample.dtype).eps
        found = _at_least(flat, max(threshold, least))
        if len(found) >= count:
            return found[_topk(flat[found], count)]
        if threshold <= least:
            # All that is not 0 is sent, and zeros make up the count.
            zeros = np.setdiff1d(np.arange(count), found.numpy(), assume_unique=True)[: count - len(found)]
            return torch.cat((found, torch.from_numpy(zeros))).sort().values
    return _topk(flat, count)


def _topk(flat: torch.Tensor, count: int) -> torch.Tensor:
    magnitudes = flat.to(work_dtype(flat.dtype)).abs()
    return torch.topk(magnitudes, count, sorted=False).indices.sort().values


def _at_least(flat: torch.Tensor, threshold: float) -> torch.Tensor:
    """The positions of all elements whose magnitude is not below a threshold, ascending; NaN is never below."""
    numel = flat.numel()
    scratch = scratch_for(numel, ELEMENTS, work_dtype(flat.dtype))
    is_below = scratch_for(numel, ELEMENTS, torch.bool)
    found = []
    for start, end, _, _ in pieces(numel, ELEMENTS):
        held, below = scratch[: end - start], is_below[: end - start]
        torch.lt(held.copy_(flat[start:end]).abs_(), threshold, out=below)
        found.append(np.flatnonzero(below.logical_not_().numpy()) + start)
    return torch.from_numpy(np.concatenate(found))


@dataclass(frozen=True)
class RandomK(Codec):
    """k = ceil(fraction n) elements at random positions: the size of an element for each, and 16 bytes.

    The positions are p_i = (a i + b) mod n for i < k, with random b and a random a that is coprime to n, so that they
    differ. Every element is sent with probability k/n. y_p = x_p for these, and 0 elsewhere, so that
    E||y - x||^2 = (1 - k/n) ||x||^2. With `unbiased`, y_p = (n/k) x_p, so that E[y] = x; then
    E||y - x||^2 = (n/k - 1) ||x||^2, and error feedback is not used. NaN and infinity anywhere in the tensor are
    refused by `encode`. Dense tensors.

    Sources: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018 (rand_k); Wangni et al., "Gradient Sparsification
    for Communication-Efficient Distributed Optimization", NeurIPS 2018, for the unbiased form.

    The state of a parameter is a seed and the number of messages so far. No generator of torch is used or changed.

    Args:
        fraction: The part of the elements that is sent.
        unbiased: Whether values are multiplied by n/k.
        seed: The seed of the sender; None takes one from the operating system for each parameter. It is not sent.

    Raises:
        InvalidArgumentError: `fraction` is not above 0 and at most 1, or another argument has the wrong type.
    """

    fraction: float
    unbiased: bool = False
    seed: int | None = field(default=None, metadata=LOCAL)

    name = "randomk"

    def __post_init__(self) -> None:
        checks.fraction(self.fraction)
        if type(self.unbiased) is not bool or not (self.seed is None or type(self.seed) is int):
            raise InvalidArgumentError("unbiased is a bool, and seed a whole number or None")

    @property
    def feedback(self) -> bool:
        """Whether error feedback makes sense: not in the unbiased form."""
        return not self.unbiased

    def _encode(self, values: torch.Tensor, state: State) -> Sequence[torch.Tensor]:
        flat = vector(values)
        checks.refuse_non_finite(checks.finite(flat), self.name)
        numel = flat.numel()
        count = checks.share(self.fraction, numel)
        seed = state.get("seed", secrets.randbits(62) if self.seed is None else self.seed)
        drawn = state.get("drawn", 0)
        step, begin = _line(Random(derived(seed, drawn)), numel, count)
        chosen = flat[_positions(step, begin, count, numel)]
        if self.unbiased and count:
            chosen.mul_(numel / count)
            checks.refuse_non_finite(checks.finite(chosen), self.name)
        state.update(seed=seed, drawn=drawn + 1)
        return torch.tensor((step, begin), device="cpu"), chosen

    def _decode(self, parts: Sequence[torch.Tensor], shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        checks.number_of(parts, 2, self.name)
        numel = shape.numel()
        count = checks.share(self.fraction, numel)
        line = checks.flat(parts[0], torch.int64, 2, "the line of randomk")
        values = checks.flat(parts[1], dtype, count, "the values of randomk")
        checks.finite_values(values)
        step, begin = line.tolist()
        if not (1 <= step <= _most_step(numel, count) and 0 <= begin < max(numel, 1) and math.gcd(step, numel) == 1):
            raise InvalidArgumentError(f"({step} i + {begin}) mod {numel} gives no different positions")
        result = torch.zeros(numel, dtype=dtype, device="cpu")
        result[_positions(step, begin, count, numel)] = values
        return result.view(shape)


def _most_step(numel: int, count: int) -> int:
    """The largest factor: below the number of elements, and so small that no product is above 2^62."""
    return max(1, min(numel - 1, (1 << 62) // max(count, 1)))


def _line(random: Random, numel: int, count: int) -> tuple[int, int]:
    """A factor that is coprime to the number of elements, and an offset."""
    if not numel:
        return 1, 0
    step = random.randint(1, _most_step(numel, count))
    while math.gcd(step, numel) != 1:
        step = random.randint(1, _most_step(numel, count))
    return step, random.randrange(numel)


def _positions(step: int, begin: int, count: int, numel: int) -> torch.Tensor:
    return torch.arange(count, device="cpu").mul_(step).add_(begin).remainder_(max(numel, 1))
