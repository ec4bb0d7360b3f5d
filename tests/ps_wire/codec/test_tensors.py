"""Tests that tensors of every dtype and layout arrive with the same bits, and own their memory."""

from __future__ import annotations

import math
import random
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from torch._subclasses import FakeTensorMode

from ps_wire.codec import dtypes, tensors
from ps_wire.codec.payload import ALIGNMENT, PayloadReader, PayloadWriter, joined
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.v1.values_pb2 import Tensor
from tests.cases import case
from tests.ps_wire import strategies
from tests.ps_wire.exact import bits_of, same_tensors

VIEWS = {
    "dense": lambda x: x,
    "transposed": lambda x: x.swapaxes(0, 1),
    "strided": lambda x: x[::2, 1::2],
    "a slice": lambda x: x[1:, 1:3],
    "one row": lambda x: x[2],
    "one element": lambda x: x[1, 2],
    "one element with a stride": lambda x: x[1:2, ::2][:, :1],
    "an empty slice": lambda x: x[:, 2:2],
    "a new axis": lambda x: x[:, None],
}
"""Views that numpy and torch make alike; the tensors are of shape (3, 4)."""


def through(tensor: torch.Tensor, inline: bool = False) -> torch.Tensor:
    """The tensor as it comes out at the other end."""
    payload = None if inline else PayloadWriter()
    message = Tensor()
    tensors.pack(tensor, message, payload)
    buffer = joined(payload.chunks, payload.nbytes) if payload is not None else None
    return tensors.unpack(Tensor.FromString(message.SerializeToString()), PayloadReader(buffer))


def span_of(tensor: torch.Tensor) -> int:
    """The elements from the first to the last one in memory."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def matrix(dtype: torch.dtype) -> tuple[torch.Tensor, np.ndarray]:
    """A tensor of shape (3, 4) with random bits, and those bits as bytes of shape (3, 4, itemsize)."""
    raw = random.Random(str(dtype)).randbytes(12 * dtype.itemsize)
    return strategies.tensor_of(raw, dtype, (3, 4)), np.frombuffer(raw, np.uint8).reshape(3, 4, dtype.itemsize)


@pytest.mark.parametrize("view", VIEWS)
def test_every_dtype_arrives_bit_by_bit_from_every_view(view: str) -> None:
    for dtype, inline in product(strategies.PLAIN, (False, True)):
        tensor, raw = matrix(dtype)
        tensor, expected = VIEWS[view](tensor), VIEWS[view](raw)
        with case(dtype, "inline" if inline else "in the payload"):
            arrived = through(tensor, inline)
            assert (arrived.dtype, tuple(arrived.shape)) == (dtype, expected.shape[:-1])
            kept = dtype in tensors._WITH_GAPS or tensor.numel() == span_of(tensor)
            assert arrived.is_contiguous() or (kept and arrived.stride() == tensor.stride())
            assert not kept or arrived.is_contiguous() is tensor.is_contiguous()
            assert bits_of(arrived) == expected.tobytes()


def test_an_expanded_tensor_arrives_whole() -> None:
    for dtype in strategies.PLAIN:
        tensor, raw = matrix(dtype)
        with case(dtype):
            arrived = through(tensor[:, :1].expand(3, 5))
            assert arrived.shape == (3, 5)
            assert bits_of(arrived) == np.repeat(raw[:, :1], 5, axis=1).tobytes()


@given(strategies.dense_tensors())
def test_any_tensor_arrives_as_it_was_sent(tensor: torch.Tensor) -> None:
    assert same_tensors(through(tensor), tensor)
    assert same_tensors(through(tensor, inline=True), tensor)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2), (1,) * 12, (), (2**40, 0)])
def test_shapes_of_any_rank_arrive(shape: tuple[int, ...]) -> None:
    for dtype in strategies.PLAIN:
        tensor = strategies.tensor_of(b"\x5a" * 16 * dtype.itemsize, dtype, (16,))[: math.prod(shape)].view(shape)
        with case(dtype):
            assert same_tensors(through(tensor), tensor)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_pending_conjugations_and_negations_are_carried_out(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1 + 2j, -3 + 0j], [0 - 4j, 5.5 + 6j]], dtype=torch.complex128).to(dtype)
    conj, neg = tensor.conj(), tensor.conj().imag
    assert conj.is_conj()
    assert neg.is_neg()
    for view in (conj, conj.t(), conj[::2, 1:], neg, neg.t(), neg[::2, 1:], torch._neg_view(tensor)):
        arrived = through(view)
        assert not arrived.is_conj()
        assert not arrived.is_neg()
        assert same_tensors(arrived, view.resolve_conj().resolve_neg())
    assert through(neg).tolist() == [[-2.0, -0.0], [4.0, -6.0]]


def test_the_bits_of_nan_infinity_and_minus_zero_survive() -> None:
    bits = [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FABCDEF, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001]
    tensor = torch.tensor(bits, dtype=torch.uint32).view(torch.float32)
    assert through(tensor).view(torch.uint32).tolist() == bits
    columns = tensor.view(4, 2).t()
    assert through(columns).view(torch.uint32).flatten().tolist() == bits[::2] + bits[1::2]


def test_whether_a_gradient_is_wanted_travels_beside_the_tensor() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    for tensor, wanted in [
        (parameter, True),
        (parameter * 2, True),
        (parameter.detach(), False),
        (parameter.data, False),
    ]:
        message, payload = Tensor(), PayloadWriter()
        tensors.pack(tensor, message, payload)
        assert message.requires_grad is wanted
        arrived = tensors.unpack(message, PayloadReader(joined(payload.chunks, payload.nbytes)))
        assert not arrived.requires_grad
        assert arrived.is_leaf
        assert type(arrived) is torch.Tensor


def test_contiguous_tensors_are_not_copied_to_be_sent() -> None:
    tensor, payload = torch.zeros(1000), PayloadWriter()
    tensors.pack(tensor, Tensor(), payload)
    tensor.fill_(1.0)
    assert np.frombuffer(payload.chunks[-1], np.float32).sum() == 1000


@pytest.mark.parametrize("dimensions", [0, 32, 33, 64, 65, 100])
def test_tensors_have_any_number_of_dimensions(dimensions: int) -> None:
    tensor, payload = torch.tensor([1.5, 2.5]).view(*[1] * dimensions, 2), PayloadWriter()
    message = Encoder(payload).encode(tensor)
    arrived = Decoder(PayloadReader(joined(payload.chunks, payload.nbytes))).decode(message)
    assert arrived.shape == tensor.shape and arrived.view(-1).tolist() == [1.5, 2.5]


@pytest.mark.parametrize("inline", [False, True])
def test_arrived_tensors_can_be_written_to_and_share_nothing_with_each_other(inline: bool) -> None:
    payload = None if inline else PayloadWriter()
    message = Encoder(payload).encode([torch.zeros(3), torch.zeros(3), torch.zeros(2, 2).t(), torch.zeros(())])
    reader = PayloadReader(joined(payload.chunks, payload.nbytes) if payload is not None else None)
    arrived = Decoder(reader).decode(message)
    for number, tensor in enumerate(arrived, 1):
        tensor.fill_(number)
    assert [tensor.unique().tolist() for tensor in arrived] == [[1.0], [2.0], [3.0], [4.0]]
    assert [tensor.untyped_storage().nbytes() for tensor in arrived] == [12, 12, 16, 4]


def test_one_tensor_sent_twice_arrives_as_two() -> None:
    tensor, payload = torch.zeros(3), PayloadWriter()
    message = Encoder(payload).encode((tensor, tensor))
    one, other = Decoder(PayloadReader(joined(payload.chunks, payload.nbytes))).decode(message)
    one += 1
    assert other.tolist() == [0.0, 0.0, 0.0]


def test_writing_to_one_tensor_does_not_disturb_the_backward_of_its_neighbours() -> None:
    payload = PayloadWriter()
    message = Encoder(payload).encode([torch.full((4,), 3.0), torch.ones(4)])
    factor, neighbour = Decoder(PayloadReader(joined(payload.chunks, payload.nbytes))).decode(message)
    versions = factor._version, neighbour._version
    x = torch.ones(4, requires_grad=True)
    loss = (x * factor).sum()  # saves `factor` for its backward
    neighbour.add_(1)
    assert (factor._version, neighbour._version) == (versions[0], versions[1] + 1)
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 4


def test_an_arrived_tensor_may_be_changed_in_place_as_the_output_of_a_function() -> None:
    class Give(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, token: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return through(torch.ones(2, 2)), through(torch.ones(3))

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> torch.Tensor:
            return torch.empty(0)

    first, second = Give.apply(torch.empty(0, requires_grad=True))
    first.mul_(2)
    second.relu_()
    assert first.requires_grad
    assert first.sum().item() == 8


def test_tensors_begin_at_aligned_places() -> None:
    payload = PayloadWriter()
    message = Encoder(payload).encode([torch.ones(3, dtype=torch.uint8), torch.ones(5, dtype=torch.float64)])
    first, second = (item.tensor for item in message.list.items)
    assert (first.offset, second.offset) == (0, ALIGNMENT)
    assert (first.nbytes, second.nbytes) == (3, 40)
    assert not first.data
    assert not second.data


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float16], ids=str)
def test_a_tensor_from_a_client_that_does_not_align_is_aligned_here(dtype: torch.dtype) -> None:
    numbers = torch.tensor([1, -2, 3], dtype=dtype)
    for offset in (1, 7, 8, 24, 63, 65):
        reader = PayloadReader(np.frombuffer(bytearray(bytes(offset) + bits_of(numbers)), np.uint8))
        message = Tensor(dtype=dtypes.to_wire(dtype), shape=[3], offset=offset, nbytes=3 * dtype.itemsize)
        with case(offset):
            arrived = tensors.unpack(message, reader)
            assert arrived.data_ptr() % dtype.itemsize == 0
            assert torch.equal(arrived.clone() + arrived, 2 * numbers)


def test_tensors_without_numbers_and_layouts_without_a_form_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="meta device"):
        through(torch.empty(2, device="meta"))
    with pytest.raises(InvalidArgumentError, match=r"layout torch\.sparse_csr cannot be sent"):
        Encoder(PayloadWriter()).encode(torch.eye(2).to_sparse_csr())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_that_stand_for_others_are_refused() -> None:
    nested = torch.nested.as_nested_tensor([torch.ones(1, 2), torch.ones(2, 2)])
    with pytest.raises(InvalidArgumentError, match="a nested tensor cannot be sent; send a padded one, or its parts"):
        Encoder(PayloadWriter()).encode(nested)
    with pytest.raises(InvalidArgumentError, match=r"inside of torch\.func\.vmap, grad or another transform cannot be"):
        torch.func.vmap(lambda x: Encoder(PayloadWriter()).encode(x))(torch.ones(2, 3))
    with pytest.raises(InvalidArgumentError, match=r"a torch\._subclasses\.fake_tensor\.FakeTensor cannot be sent"):
        Encoder(PayloadWriter()).encode(FakeTensorMode().from_tensor(torch.ones(2)))


@pytest.mark.gpu
def test_a_tensor_on_a_gpu_arrives_on_the_cpu() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    assert same_tensors(through(tensor.cuda().t()), tensor.t())
