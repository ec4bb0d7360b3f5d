"""Tests that strides arrive, that no element is read outside of a message, and that gaps cost little memory."""

from __future__ import annotations

import math
import random
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_wire.codec import dtypes, tensors
from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.values_pb2 import Tensor
from tests.cases import case
from tests.ps_wire.codec.test_tensors import through
from tests.ps_wire.exact import bits_of, same_tensors

IMAGES = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).view(2, 3, 4, 5)

KEPT = {
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "permuted": IMAGES.permute(3, 0, 2, 1),
    "channels last": IMAGES.to(memory_format=torch.channels_last),
    "one channel last": IMAGES[:, :1].contiguous(memory_format=torch.channels_last).permute(0, 3, 1, 2),
    "narrowed": torch.arange(25.0).view(5, 5).narrow(1, 2, 2),
    "every second": torch.arange(9.0)[::2],
    "channels last of bfloat16": IMAGES.bfloat16().to(memory_format=torch.channels_last),
    "transposed truth": (IMAGES[0, 0] > 5).t(),
    "conjugated": torch.view_as_complex(torch.arange(24.0).view(3, 4, 2)).t().conj(),
}


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", KEPT)
def test_strides_are_kept(name: str, inline: bool) -> None:
    tensor = KEPT[name]
    arrived = through(tensor, inline)
    assert arrived.stride() == tensor.stride() and same_tensors(arrived, tensor)
    assert (
        arrived.is_contiguous(memory_format=torch.channels_last)
        is tensor.is_contiguous(memory_format=torch.channels_last)
        if tensor.dim() == 4
        else True
    )
    assert arrived._base is None and arrived.storage_offset() == 0
    arrived.fill_(1)  # it can be written to


MADE_ROW_MAJOR = {
    "expanded": torch.ones(3, 1).expand(3, 4),
    "a scalar expanded": torch.ones(()).expand(1000, 1000),
    "overlapping windows": torch.arange(9.0).unfold(0, 4, 1),
    "large gaps": torch.zeros(100, 1000)[:, :10],
    "far apart": torch.zeros(10**6)[:: 10**5],
    "truth with gaps": torch.ones(4, 4, dtype=torch.bool)[:, ::2],
    "bfloat16 with gaps": torch.ones(4, 4, dtype=torch.bfloat16)[:, ::2],
    "quantized": torch.quantize_per_tensor(torch.rand(3, 4), 0.1, 0, torch.qint8).t(),
    "turned": torch.arange(6.0).view(2, 3).flip(0),
}


@pytest.mark.parametrize("name", MADE_ROW_MAJOR)
def test_other_tensors_arrive_whole_and_row_by_row(name: str) -> None:
    tensor = MADE_ROW_MAJOR[name]
    arrived = through(tensor)
    assert arrived.is_contiguous() and same_tensors(arrived, tensor)
    assert arrived.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize


def test_a_permuted_tensor_is_not_copied_to_be_sent() -> None:
    tensor, payload = torch.zeros(10, 100), PayloadWriter()
    tensors.pack(tensor.t(), Tensor(), payload)
    tensor.fill_(1.0)
    assert np.frombuffer(payload.chunks[-1], np.float32).sum() == 1000


def test_what_lies_in_the_gaps_is_not_sent() -> None:
    secret = torch.full((5, 5), 7.0)
    secret[:, 2:4] = 1.0
    message, payload = Tensor(), PayloadWriter()
    tensors.pack(secret.narrow(1, 2, 2), message, payload)
    assert b"".join(payload.chunks) == torch.ones(10).numpy().tobytes()
    arrived = through(secret.narrow(1, 2, 2))
    assert arrived.as_strided((22,), (1,)).sum() == 10


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.randoms(use_true_random=False), st.data())
def test_any_view_arrives(shape: list[int], chance: random.Random, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.int64, torch.bfloat16, torch.uint8, torch.bool]))
    tensor = (torch.arange(math.prod(shape)).view(shape) % 2).to(dtype)
    order = list(range(len(shape)))
    chance.shuffle(order)
    view = tensor.permute(order)
    for dimension in range(view.dim()):
        step = data.draw(st.integers(1, 3))
        index = (slice(None),) * dimension + (slice(data.draw(st.integers(0, 1)), None, step),)
        view = view[index]
    if data.draw(st.booleans()):
        view = view.unsqueeze(data.draw(st.integers(0, view.dim())))
    arrived = through(view)
    assert bits_of(arrived) == bits_of(view)
    if dtype in tensors._WITH_GAPS and view.numel() > 1:
        places = [place for place, size in enumerate(view.shape) if size > 1]
        assert [arrived.stride(place) for place in places] == [view.stride(place) for place in places]


WRONG = {
    "too few": ([3, 4], [4]),
    "too many": ([3, 4], [4, 1, 1]),
    "negative": ([3, 4], [-4, 1]),
    "repeated": ([3, 4], [0, 1]),
    "all at one place": ([3, 4], [0, 0]),
    "sharing": ([3, 4], [2, 1]),
    "interleaved": ([3, 4], [1, 2]),
    "far away": ([3, 4], [2**40, 1]),
    "beyond 64 bits together": ([3, 4], [2**62, 2**61]),
    "of a dimension of one": ([12, 1], [1, 2**62]),
    "of the last": ([2, 2, 3], [6, 3, 2**50]),
}


@pytest.mark.parametrize("name", WRONG)
def test_strides_that_reach_outside_or_share_memory_are_refused(name: str) -> None:
    shape, strides = WRONG[name]
    for dtype, inline in product((torch.float32, torch.bfloat16, torch.bool), (False, True)):
        data = bytes(12 * dtype.itemsize)
        message = Tensor(dtype=dtypes.to_wire(dtype), shape=shape, strides=strides, nbytes=len(data))
        if inline:
            message.data = data
        reader = PayloadReader(None if inline else np.frombuffer(bytearray(data), np.uint8))
        how = "inline" if inline else "in the payload"
        with case(dtype, how), pytest.raises(InvalidArgumentError, match="strides"):
            tensors.unpack(message, reader)


def test_gaps_that_no_sender_makes_are_refused() -> None:
    for dtype, strides in ((torch.bool, [8, 2]), (torch.bfloat16, [8, 2]), (torch.float32, [3000, 1])):
        data = bytes(12 * dtype.itemsize)
        message = Tensor(dtype=dtypes.to_wire(dtype), shape=[3, 4], strides=strides, data=data)
        with pytest.raises(InvalidArgumentError, match="with gaps in memory"):
            tensors.unpack(message, PayloadReader())
    quantized = Tensor()
    tensors.pack(torch.quantize_per_tensor(torch.rand(3, 4), 0.1, 0, torch.qint8), quantized, None)
    quantized.strides.extend([1, 3])
    with pytest.raises(InvalidArgumentError, match="have no strides here"):
        tensors.unpack(quantized, PayloadReader())
