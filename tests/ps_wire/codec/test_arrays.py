"""Tests that arrays of numpy travel by value."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ps_wire.codec.payload import PayloadReader, PayloadWriter, joined
from ps_wire.codec.trees import mapped, tensors_in
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.values_pb2 import Record, Value
from tests.ps_wire.codec.test_records import through

Array = npt.NDArray[np.generic]

DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]


def same(first: object, second: Array) -> bool:
    """Whether the first is an array of the same shape, dtype and bytes."""
    assert type(first) is np.ndarray
    return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_keeps_its_dtype_shape_and_values(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = through({"state": [array, 1]})["state"]
    assert same(found[0], array) and found[1] == 1


@pytest.mark.parametrize(
    "array",
    [np.array(2.5), np.zeros((0, 3)), np.arange(12.0).reshape(3, 4).T, np.arange(5)[::-1], np.arange(8)[::2]],
    ids=["scalar", "empty", "transposed", "reversed", "strided"],
)
def test_an_array_of_any_layout_travels(array: Array) -> None:
    assert same(through(array), array)


def test_an_array_of_another_byte_order_arrives_in_that_of_the_machine() -> None:
    array = np.arange(3, dtype=">f4")
    assert same(through(array), array.astype("=f4"))


def test_a_read_only_array_travels_and_what_arrives_can_be_written_to() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    found = through(array)
    found[0] = 5.0
    assert found.tolist() == [5.0, 1.0, 2.0] and array.tolist() == [0.0, 1.0, 2.0]


def test_the_bytes_of_an_array_are_those_of_a_tensor() -> None:
    payload = PayloadWriter()
    message = Encoder(payload).encode(np.arange(1000.0))
    assert payload.nbytes == 8000 and message.ByteSize() < 100
    decoder = Decoder(PayloadReader(joined(payload.chunks, payload.nbytes)), on_tensor=lambda tensor, _: tensor + 1)
    assert same(decoder.decode(message), np.arange(1000.0) + 1)


def test_trees_are_walked_through_arrays() -> None:
    tree = [np.arange(3), torch.ones(1)]
    assert [tensor.tolist() for tensor in tensors_in(tree)] == [[0, 1, 2], [1.0]]
    assert same(mapped(tree, lambda tensor: tensor * 2)[0], np.arange(3) * 2)


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([None]), np.array([1], "M8[s]")], ids=lambda a: a.dtype.kind
)
def test_an_array_without_a_dtype_of_torch_is_refused(array: Array) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(f"dtype {array.dtype} cannot be sent")):
        through(array)


def test_a_message_that_holds_no_tensor_makes_no_array() -> None:
    message = Value(record=Record(class_name="numpy.ndarray", state=Value(text="abc")))
    with pytest.raises(InvalidArgumentError, match=r"no numpy\.ndarray could be made"):
        Decoder(PayloadReader()).decode(message)
