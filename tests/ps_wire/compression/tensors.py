"""What the tests of codecs encode, and how they send it."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from ps_wire.codec.payload import PayloadReader, PayloadWriter, joined
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.compression.codec import FLOATS, Codec, Encoded
from ps_wire.compression.registry import BF16, FP16, Int8, PowerSGD, RandomK, Sign, TopK, Zstd, decode

LOSSY: tuple[Codec, ...] = (
    FP16(),
    BF16(),
    Int8(),
    Int8(block=3),
    TopK(0.01),
    TopK(0.3),
    RandomK(0.2, seed=1),
    RandomK(0.5, unbiased=True, seed=2),
    Sign(),
    Sign(block=8),
    PowerSGD(),
    PowerSGD(rank=1),
)
ALL: tuple[Codec, ...] = (*LOSSY, Zstd(), Zstd(level=1))
SPARSE: tuple[Codec, ...] = (FP16(), BF16(), Int8(), Int8(block=3), Zstd())
DTYPES = sorted(FLOATS, key=str)


def through(encoded: Encoded) -> tuple[Encoded, int]:
    """What arrives at the other end of the wire codec, and the bytes that the message has there."""
    payload = PayloadWriter()
    message = Encoder(payload).encode(encoded)
    arrived: Any = Decoder(PayloadReader(joined(payload.chunks, payload.nbytes))).decode(message)
    assert isinstance(arrived, Encoded)
    return arrived, len(message.SerializeToString()) + payload.nbytes


def there_and_back(codec: Codec, tensor: torch.Tensor) -> torch.Tensor:
    """What a receiver decodes into a tensor of its own that has nothing but shape and dtype in common."""
    arrived, _ = through(codec.encode(tensor))
    return decode(arrived, torch.empty(tensor.shape, dtype=tensor.dtype))


def random(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@st.composite
def floats(draw: st.DrawFn) -> torch.Tensor:
    """Finite floats of every magnitude of the dtype; often with zeros, ties, holes or exchanged axes."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.one_of(st.lists(st.integers(0, 9), max_size=3), st.lists(st.integers(20, 90), max_size=2)))
    tensor = random(tuple(shape), dtype, draw(st.integers(0, 2**32)))
    tensor = tensor * draw(st.sampled_from([1.0, 1e-3, 1e-30, 0.0, 1e4, 1e30 if dtype != torch.float16 else 2.0]))
    if draw(st.booleans()):
        tensor = tensor.sign() * (tensor.abs() > 0.7)
    if shape and draw(st.booleans()):
        tensor = tensor.transpose(0, draw(st.integers(0, len(shape) - 1)))
    if shape and draw(st.booleans()):
        tensor = tensor[:: draw(st.integers(1, 3))]
    return tensor
