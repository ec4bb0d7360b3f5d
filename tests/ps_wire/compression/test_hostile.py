"""Decoding of messages that lie: a result of the receiver's shape, or one error, without large allocations."""

from __future__ import annotations

import random as chance
from typing import Any

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

from ps_wire.compression.codec import Codec, Encoded
from ps_wire.compression.registry import CLASSES, Int8, PowerSGD, RandomK, Sign, TopK, Zstd, decode
from ps_wire.errors import InvalidArgumentError
from tests.ps_wire import strategies
from tests.ps_wire.compression.tensors import ALL, SPARSE, random

HUGE = (-1, 2**31, 2**40, 2**62, -(2**63))


def mutated(encoded: Encoded, dice: chance.Random) -> Encoded:
    """One lie, or a few: about lengths, dtypes, elements, parameters, or the number of tensors."""
    parts = [list(encoded.tensors), list(encoded.coordinates)]
    codec, parameters = encoded.codec, dict(encoded.parameters)
    for _ in range(dice.randint(1, 2)):
        part = parts[1] if parts[1] and dice.random() < 0.4 else parts[0]
        at = dice.randrange(len(part)) if part else 0
        match dice.randrange(8):
            case 0 if part:
                part.pop(at)
            case 1 if part:
                part[at] = part[at][: dice.randrange(len(part[at]) + 1)]
            case 2 if part:
                part[at] = torch.cat((part[at], part[at][:1]))
            case 3 if part:
                part[at] = part[at].to(dice.choice([torch.int64, torch.float64, torch.uint8, torch.int32]))
            case 4 if part and part[at].numel():
                changed = part[at].clone()
                raw = changed.view(-1).view(torch.uint8)
                raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
                part[at] = changed
            case 5 if part and part[at].numel():
                changed = part[at].clone()
                lie = dice.choice(HUGE) if changed.dtype in (torch.int64,) else dice.choice([0, 1, 77, 127])
                changed.view(-1)[dice.randrange(changed.numel())] = lie
                part[at] = changed
            case 6 if parameters:
                name = dice.choice([*parameters])
                parameters[name] = dice.choice([0, 1, 3, 0.5, 8, 2**40, "x", None, float("nan"), True])
            case _:
                codec = dice.choice([*CLASSES])
    return Encoded(codec, parameters, tuple(parts[0]), tuple(parts[1]))


def read(encoded: Encoded, like: torch.Tensor) -> bool:
    """Whether it was decoded; the result then fits."""
    try:
        result = decode(encoded, like)
    except InvalidArgumentError:
        return False
    assert (result.shape, result.dtype) == (like.shape, like.dtype)
    if result.is_sparse:
        assert result._nnz() <= like.numel()
        result.to_dense()
    return True


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_mutated_messages_are_decoded_or_refused(codec: Codec) -> None:
    dice = chance.Random(str(codec))
    like = torch.empty(12, 30)
    encoded = codec.encode(random((12, 30)))
    assert read(encoded, like)
    refused = sum(not read(mutated(encoded, dice), like) for _ in range(800))
    assert 300 < refused < 800


@pytest.mark.parametrize("codec", SPARSE, ids=str)
def test_mutated_sparse_messages_are_decoded_or_refused(codec: Codec) -> None:
    dice = chance.Random(str(codec))
    like = torch.empty(12, 5)
    encoded = codec.encode(torch.sparse_coo_tensor([[3, 1, 7]], random((3, 5)), (12, 5), check_invariants=True))
    assert read(encoded, like)
    refused = sum(not read(mutated(encoded, dice), like) for _ in range(400))
    assert 150 < refused < 400


@given(strategies.values)
def test_any_value_is_no_encoded_tensor_or_a_harmless_one(value: Any) -> None:
    try:
        encoded = Encoded.from_value(value)
    except InvalidArgumentError:
        return
    read(encoded, torch.zeros(3))


small = st.one_of(strategies.dense_tensors(), strategies.sparse_tensors())


@given(
    st.sampled_from(ALL),
    st.lists(small, max_size=3),
    st.lists(small, max_size=2),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]),
)
def test_any_tensors_are_decoded_or_refused(
    codec: Codec, tensors: list[torch.Tensor], coordinates: list[torch.Tensor], shape: list[int], dtype: torch.dtype
) -> None:
    encoded = Encoded(codec.name, codec.parameters(), tuple(tensors), tuple(coordinates))
    if read(encoded, torch.empty(shape, dtype=dtype)):
        event("accepted")


@pytest.mark.parametrize(
    ("encoded", "words"),
    [
        (Encoded("topk", {"fraction": 0.5}, (torch.tensor([0, 4]).int(), torch.ones(2))), "outside"),
        (Encoded("topk", {"fraction": 0.5}, (torch.tensor([-1, 3]).int(), torch.ones(2))), "outside"),
        (Encoded("topk", {"fraction": 0.5}, (torch.tensor([1, 1]).int(), torch.ones(2))), "ascending"),
        (Encoded("topk", {"fraction": 0.5}, (torch.tensor([1, 2]), torch.ones(2))), "int32"),
        (Encoded("topk", {"fraction": 0.5}, (torch.tensor([1, 2]).int(), torch.ones(2).double())), "float32"),
        (Encoded("topk", {"fraction": 0.5}, (torch.tensor([1]).int(), torch.ones(1))), "2 elements"),
        (Encoded("topk", {"fraction": 0.5}, (torch.tensor([1, 2]).int(), torch.tensor([1, torch.nan]))), "not finite"),
        (Encoded("topk", {"fraction": 1e-300}, (torch.zeros(0).int(), torch.zeros(0))), "1 elements"),
        (Encoded("randomk", {"fraction": 0.5}, (torch.tensor([2, 0]), torch.ones(2))), "different positions"),
        (Encoded("randomk", {"fraction": 0.5}, (torch.tensor([1, 4]), torch.ones(2))), "different positions"),
        (Encoded("randomk", {"fraction": 0.5}, (torch.tensor([0, 1]), torch.ones(2))), "different positions"),
        (Encoded("randomk", {"fraction": 0.5}, (torch.tensor([2**63 - 1, 1]), torch.ones(2))), "different positions"),
        (Encoded("randomk", {"fraction": 0.5}, (torch.tensor([1, -1]), torch.ones(2))), "different positions"),
        (Encoded("int8", {"block": 256}, (torch.ones(4).char(), torch.tensor([torch.inf]))), "scale"),
        (Encoded("int8", {"block": 256}, (torch.ones(4).char(), torch.tensor([torch.nan]))), "scale"),
        (Encoded("int8", {"block": 256}, (torch.ones(4).char(), torch.tensor([-1.0]))), "scale"),
        (Encoded("int8", {"block": 1}, (torch.ones(4).char(), torch.ones(1))), "4 elements"),
        (Encoded("int8", {"block": 256}, (torch.ones(2, 2).char(), torch.ones(1))), "shape"),
        (Encoded("sign", {"block": 8}, (torch.ones(1).byte(), torch.tensor([-1.0]))), "scale"),
        (Encoded("sign", {"block": 8}, (torch.ones(2).byte(), torch.ones(1))), "1 elements"),
        (Encoded("fp16", {}, (torch.ones(5).half(),)), "4 elements"),
        (Encoded("fp16", {}, ()), "1 tensors"),
        (Encoded("fp16", {"x": 1}, (torch.ones(4).half(),)), "parameters"),
        (Encoded("bf16", {}, (torch.ones(4).half(),)), "bfloat16"),
        (Encoded("powersgd", {"rank": 1}, (torch.ones(4), torch.ones(4))), "1 tensors"),
        (Encoded("zstd", {"level": 3}, (torch.ones(4).byte(),)), "zstd"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_lie_is_named(encoded: Encoded, words: str) -> None:
    if encoded.codec == "randomk":
        encoded.parameters["unbiased"] = False
    with pytest.raises(InvalidArgumentError, match=words):
        decode(encoded, torch.zeros(4))


class Watched(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """Notes the largest tensor that a function of torch returns."""

    largest = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.layout is torch.strided:
            self.largest = max(self.largest, result.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("codec", [*ALL], ids=str)
def test_a_short_message_for_a_large_parameter_allocates_nothing(codec: Codec) -> None:
    like = torch.zeros(()).expand(1 << 20, 1 << 20)
    encoded = codec.encode(random((12, 30)))
    with Watched() as watched, pytest.raises(InvalidArgumentError):
        decode(encoded, like)
    assert watched.largest < 10_000


def test_a_frame_that_announces_another_size_is_refused_before_it_is_decompressed() -> None:
    bomb = Zstd().encode(torch.zeros(1 << 24))
    assert bomb.nbytes < 5000
    with Watched() as watched, pytest.raises(InvalidArgumentError, match="67108864 bytes instead of 400"):
        decode(bomb, torch.zeros(100))
    assert watched.largest < 10_000
    cut = Encoded("zstd", {"level": 3}, (bomb.tensors[0][:-1],))
    with pytest.raises(InvalidArgumentError):
        decode(cut, torch.zeros(1 << 24))
    longer = Encoded("zstd", {"level": 3}, (torch.cat((bomb.tensors[0], torch.ones(1).byte())),))
    with pytest.raises(InvalidArgumentError):
        decode(longer, torch.zeros(1 << 24))


def test_bools_that_are_neither_0_nor_1_are_refused() -> None:
    frame = Zstd().encode(torch.tensor([2, 1], dtype=torch.uint8))
    with pytest.raises(InvalidArgumentError, match="bool"):
        decode(frame, torch.zeros(2, dtype=torch.bool))


@pytest.mark.parametrize(
    ("coordinates", "words"),
    [
        (torch.tensor([[1, 1]]).int(), "uncoalesced"),
        (torch.tensor([[2, 1]]).int(), "uncoalesced"),
        (torch.tensor([[0, 4]]).int(), "index 4"),
        (torch.tensor([[-1, 1]]).int(), "negative"),
        (torch.tensor([[0, 1]]), "int32"),
        (torch.tensor([0, 1]).int(), "two dimensions"),
        (torch.zeros(3, 2).int(), "do not fit"),
        (torch.zeros(1, 5).int(), "do not fit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_coordinates_that_lie_are_refused(coordinates: torch.Tensor, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        decode(Encoded("fp16", {}, (torch.ones(6).half(),), (coordinates,)), torch.zeros(4, 3))


def test_ranks_and_blocks_beyond_the_parameter_are_harmless() -> None:
    like = torch.zeros(100, 100)
    for codec in (PowerSGD(1 << 20), Int8(1 << 30), Sign(1 << 30)):
        assert read(codec.encode(like), like)
        assert not read(Encoded(codec.name, codec.parameters(), (torch.ones(3), torch.ones(3))), like)
    assert not read(Encoded("randomk", RandomK(1.0).parameters(), (torch.tensor([1, 0]), torch.ones(3))), like)
    assert not read(Encoded("topk", TopK(1.0).parameters(), (torch.tensor([0]).int(), torch.ones(1))), like)
