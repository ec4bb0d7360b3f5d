"""Sparse tensors in coordinate layout: coalesced or not, hybrid, empty, of every dtype; bad coordinates are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given

from ps_wire.codec import dtypes, tensors
from ps_wire.codec.payload import PayloadReader, PayloadWriter, joined
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.values_pb2 import DType, SparseTensor, Tensor
from tests.cases import case
from tests.ps_wire import strategies
from tests.ps_wire.exact import bits_of, same_tensors


def through(tensor: torch.Tensor, inline: bool = False) -> torch.Tensor:
    """The tensor as it comes out at the other end."""
    payload = None if inline else PayloadWriter()
    message = SparseTensor()
    tensors.pack_sparse(tensor, message, payload)
    buffer = joined(payload.chunks, payload.nbytes) if payload is not None else None
    return tensors.unpack_sparse(SparseTensor.FromString(message.SerializeToString()), PayloadReader(buffer))


def described(
    indices: Sequence[Sequence[int]], values: torch.Tensor, shape: Sequence[int], coalesced: bool = False
) -> SparseTensor:
    """A message that says this, true or not."""
    message = SparseTensor(shape=shape, coalesced=coalesced)
    tensors.pack(torch.tensor(indices, dtype=torch.int64), message.indices, None)
    tensors.pack(values, message.values, None)
    return message


@given(strategies.sparse_tensors())
def test_any_sparse_tensor_arrives_as_it_was_sent(tensor: torch.Tensor) -> None:
    for inline in (False, True):
        arrived = through(tensor, inline)
        assert same_tensors(arrived, tensor)
        assert torch.equal(arrived.to_dense(), tensor.to_dense())


@pytest.mark.parametrize("coalesced", [False, True])
def test_every_dtype_arrives_bit_by_bit(coalesced: bool) -> None:
    for dtype in strategies.PLAIN:
        values = strategies.tensor_of(bytes(range(1, 1 + 3 * dtype.itemsize)), dtype, (3,))
        tensor = torch.sparse_coo_tensor([[0, 2, 5]], values, [6], is_coalesced=coalesced, check_invariants=True)
        with case(dtype):
            arrived = through(tensor)
            assert same_tensors(arrived, tensor)
            assert bits_of(arrived._values()) == bytes(range(1, 1 + 3 * dtype.itemsize))


def test_whether_it_is_coalesced_travels_with_it() -> None:
    twice = torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], [4], check_invariants=True)
    assert not through(twice).is_coalesced()
    assert through(twice)._nnz() == 2
    assert through(twice.coalesce()).is_coalesced()
    assert through(twice.coalesce())._values().tolist() == [5.0]


@pytest.mark.parametrize("shape", [(0,), (3,), (2, 0), (3, 4, 5), (2**40, 2**20)], ids=str)
def test_tensors_without_any_element_arrive(shape: tuple[int, ...]) -> None:
    tensor = torch.sparse_coo_tensor(size=shape, check_invariants=True)
    arrived = through(tensor)
    assert (arrived.shape, arrived._nnz(), arrived.is_coalesced()) == (tensor.shape, 0, tensor.is_coalesced())


def test_hybrid_tensors_arrive_with_their_dense_part() -> None:
    tensor = torch.sparse_coo_tensor(
        [[0, 2]], torch.arange(12.0).view(2, 3, 2).transpose(1, 2), [4, 2, 3], check_invariants=True
    )
    arrived = through(tensor)
    assert (arrived.sparse_dim(), arrived.dense_dim()) == (1, 2)
    assert same_tensors(arrived, tensor)


def test_the_gradient_of_an_embedding_arrives() -> None:
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    embedding(torch.tensor([1, 1, 7])).sum().backward()
    assert embedding.weight.grad is not None
    assert same_tensors(through(embedding.weight.grad), embedding.weight.grad)


def test_whether_a_gradient_is_wanted_travels_beside_it() -> None:
    for wanted in (False, True):
        message = SparseTensor()
        tensors.pack_sparse(torch.eye(2).to_sparse().requires_grad_(wanted), message, None)
        assert message.requires_grad is wanted
        assert not tensors.unpack_sparse(message, PayloadReader()).requires_grad


def test_received_tensors_are_writable() -> None:
    arrived = through(torch.eye(3).to_sparse())
    arrived._values().mul_(2)
    assert torch.equal(arrived.to_dense(), 2 * torch.eye(3))


ONES = torch.ones(2)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (described([[0, 4]], ONES, [4]), "found index 4"),
        (described([[0, 2**62]], ONES, [4]), "found index"),
        (described([[0, -1]], ONES, [4]), "negative index"),
        (described([[0, 1]], torch.ones(3), [4]), "same nnz"),
        (described([[0, 1]], torch.ones(()), [4]), "same nnz"),
        (described([[0, 1]], torch.ones(2, 3), [4]), "size"),
        (described([[0, 1]], torch.ones(2, 3), [4, 5]), "size"),
        (described([[0, 1]], ONES, []), "size"),
        (described([[0, 1]], ONES, [4, 4]), "size"),
        (described([[0, 1]], ONES, [-4]), "size"),
        (described([[], []], torch.ones(0), [2**62, 2**62]), "overflow"),
        (described([[1, 1]], ONES, [4], coalesced=True), "uncoalesced"),
        (described([[1, 0]], ONES, [4], coalesced=True), "uncoalesced"),
        (SparseTensor(), "dtype"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_coordinates_that_do_not_fit_are_refused(message: SparseTensor, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        tensors.unpack_sparse(message, PayloadReader())


@pytest.mark.parametrize("shape", [(2,), (), (1, 2, 1)], ids=str)
def test_indices_must_have_two_dimensions(shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape))
    indices = Tensor(dtype=DType.DTYPE_INT64, shape=shape, data=bytes(8 * count))
    values = Tensor(dtype=DType.DTYPE_FLOAT32, shape=[2], data=bytes(8))
    with pytest.raises(InvalidArgumentError, match="int64 of two dimensions"):
        tensors.unpack_sparse(SparseTensor(indices=indices, values=values, shape=[4]), PayloadReader())


def test_indices_must_be_int64() -> None:
    values = Tensor(dtype=DType.DTYPE_FLOAT32, shape=[2], data=bytes(8))
    for dtype in {*strategies.PLAIN} - {torch.int64}:
        indices = Tensor(dtype=dtypes.to_wire(dtype), shape=[1, 2], data=bytes(2 * dtype.itemsize))
        with case(dtype), pytest.raises(InvalidArgumentError, match="int64 of two dimensions"):
            tensors.unpack_sparse(SparseTensor(indices=indices, values=values, shape=[4]), PayloadReader())
