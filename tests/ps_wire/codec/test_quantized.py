"""Tests that quantized tensors arrive unchanged, and that those torch cannot copy are refused."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from ps_wire.codec import dtypes, tensors
from ps_wire.codec.payload import PayloadReader
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.values_pb2 import Quantizer, SparseTensor, Tensor
from tests.cases import case
from tests.ps_wire import strategies
from tests.ps_wire.codec.test_tensors import through
from tests.ps_wire.exact import bits_of, same_tensors

WHOLE = (torch.quint8, torch.qint8, torch.qint32)
PACKED = (torch.quint4x2, torch.quint2x4)


def quantized(dtype: torch.dtype, *shape: int, zero_point: int = 1) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.quantize_per_tensor(torch.rand(shape), 0.125, zero_point, dtype)


def test_these_are_all_the_quantized_dtypes() -> None:
    assert {dtype for dtype in dtypes.TO_WIRE if str(dtype).startswith(("torch.q", "torch.quint"))} == {*WHOLE, *PACKED}
    assert set(strategies.QUANTIZED) == {*WHOLE, *PACKED}


@pytest.mark.parametrize("dtype", [*WHOLE, *PACKED], ids=str)
def test_every_quantized_dtype_arrives_as_it_was(dtype: torch.dtype) -> None:
    for shape, inline in product([(12,), (3, 5), (7,), (1,), (), (0,), (2, 0)], (False, True)):
        tensor = quantized(dtype, *shape)
        with case(shape, "inline" if inline else "in the payload"):
            arrived = through(tensor, inline)
            assert same_tensors(arrived, tensor)
            assert arrived.qscheme() == torch.per_tensor_affine
            assert torch.equal(arrived.dequantize(), tensor.dequantize())


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_views_of_whole_integers_arrive(dtype: torch.dtype) -> None:
    tensor = quantized(dtype, 4, 6)
    for view in (tensor.t(), tensor[::2], tensor[1:, 2:], tensor[1, 2], tensor[:, :1].expand(4, 3)):
        arrived = through(view)
        assert same_tensors(arrived, view)
        assert torch.equal(arrived.dequantize(), view.dequantize())


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_the_start_of_packed_integers_arrives_and_other_views_are_refused(dtype: torch.dtype) -> None:
    tensor = quantized(dtype, 4, 6)
    assert torch.equal(through(tensor[:3]).dequantize(), tensor[:3].dequantize())
    for view in (tensor.t(), tensor[::2], tensor[1:]):
        with pytest.raises(InvalidArgumentError, match=r"a view cannot be sent"):
            through(view)


def test_negative_zero_points_and_odd_scales_survive() -> None:
    for scale, zero_point in [(1e-30, -7), (3.0000000000000004, 0), (2.0**100, -(2**31))]:
        tensor = torch._empty_affine_quantized([3], scale=scale, zero_point=zero_point, dtype=torch.qint32)
        arrived = through(tensor)
        assert (arrived.q_scale(), arrived.q_zero_point()) == (scale, zero_point)
        assert bits_of(arrived) == bits_of(tensor)


@pytest.mark.parametrize("dtype", [*WHOLE, *PACKED], ids=str)
def test_tensors_quantized_per_channel_are_refused_with_advice(dtype: torch.dtype) -> None:
    scales, zero_points = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    tensor = torch._empty_per_channel_affine_quantized(
        [2, 4], scales=scales, zero_points=zero_points, axis=0, dtype=dtype
    )
    with pytest.raises(InvalidArgumentError, match=r"per channel cannot be sent; dequantize\(\) it first"):
        through(tensor)


@pytest.mark.parametrize("dtype", [*WHOLE, *PACKED], ids=str)
def test_a_quantized_dtype_without_a_quantizer_is_refused(dtype: torch.dtype) -> None:
    for count in (0, 4):
        for nbytes in (count, count * dtype.itemsize, -(-count // 2), -(-count // 4)):
            message = Tensor(dtype=dtypes.to_wire(dtype), shape=[count], data=bytes(nbytes))
            with case(count, nbytes), pytest.raises(InvalidArgumentError, match="need a quantizer"):
                tensors.unpack(message, PayloadReader())


def test_a_quantizer_on_any_other_dtype_is_refused() -> None:
    quantizer = Quantizer(scale=1.0)
    for dtype in strategies.PLAIN:
        message = Tensor(dtype=dtypes.to_wire(dtype), shape=[2], data=bytes(2 * dtype.itemsize), quantizer=quantizer)
        with case(dtype), pytest.raises(InvalidArgumentError, match="have no quantizer"):
            tensors.unpack(message, PayloadReader())


@pytest.mark.parametrize(("dtype", "right"), [(torch.quint4x2, 3), (torch.quint2x4, 2)], ids=str)
def test_the_wrong_number_of_packed_bytes_is_refused(dtype: torch.dtype, right: int) -> None:
    def message(nbytes: int) -> Tensor:
        return Tensor(dtype=dtypes.to_wire(dtype), shape=[5], data=bytes(nbytes), quantizer=Quantizer(scale=1.0))

    assert tensors.unpack(message(right), PayloadReader()).shape == (5,)
    for nbytes in {0, 1, 2, 3, 4, 5, 8} - {right}:
        with case(nbytes), pytest.raises(InvalidArgumentError, match=f"has {right} bytes"):
            tensors.unpack(message(nbytes), PayloadReader())


@pytest.mark.parametrize("dtype", [*WHOLE, *PACKED], ids=str)
def test_sparse_tensors_of_quantized_values_are_refused(dtype: torch.dtype) -> None:
    indices = Tensor(dtype=13, shape=[1, 4], data=np.arange(4, dtype=np.int64).tobytes())
    nbytes = {torch.qint32: 16, torch.quint4x2: 2, torch.quint2x4: 1}.get(dtype, 4)
    values = Tensor(dtype=dtypes.to_wire(dtype), shape=[4], data=bytes(nbytes), quantizer=Quantizer(scale=1.0))
    for coalesced in (False, True):
        message = SparseTensor(indices=indices, values=values, shape=[4], coalesced=coalesced)
        with pytest.raises(InvalidArgumentError, match="sparse"):
            tensors.unpack_sparse(message, PayloadReader())
