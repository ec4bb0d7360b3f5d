"""Codecs as values, what they take and refuse, sparse tensors, NaN and infinity, and codecs of a program's own."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import pytest
import torch

from ps_wire.compression import zstd
from ps_wire.compression.codec import Codec, Encoded
from ps_wire.compression.registry import (
    BF16,
    CLASSES,
    FP16,
    Int8,
    PowerSGD,
    RandomK,
    Sign,
    TopK,
    Zstd,
    codec_named,
    decode,
    register_codec,
)
from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError
from tests.cases import case
from tests.ps_wire.compression.tensors import ALL, LOSSY, SPARSE, random, there_and_back, through
from tests.ps_wire.exact import same_tensors

# As values


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_a_codec_is_a_value_that_a_message_can_name(codec: Codec) -> None:
    again = codec_named(codec.name, codec.parameters())
    assert dataclasses.replace(again, **{"seed": codec.seed} if isinstance(codec, RandomK) else {}) == codec
    assert repr(codec).startswith(type(codec).__name__ + "(")
    assert len({codec, dataclasses.replace(codec)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        codec.name = "other"  # type: ignore[misc]


def test_codecs_of_other_parameters_are_not_equal() -> None:
    assert TopK(0.1) != TopK(0.2) != Sign()
    assert repr(TopK(0.01)) == "TopK(fraction=0.01)"
    assert {*CLASSES} == {"fp16", "bf16", "int8", "topk", "randomk", "sign", "powersgd", "zstd"}


def test_parameters_out_of_range_are_refused() -> None:
    wrong: dict[Any, Any] = {
        TopK: (0, -0.1, 1.1, float("nan"), float("inf"), True, "1", None),
        RandomK: (0, 2.0, None),
        Int8: (0, -1, 1.0, True, 2**31, None),
        Sign: (0, 7, 12, 8.0, 2**31),
        PowerSGD: (0, -1, 2**21, 1.0),
        Zstd: (0, 23, "3"),
    }
    for cls, values in wrong.items():
        for value in values:
            with case(cls.__name__, value), pytest.raises(InvalidArgumentError):
                cls(value)
    for options in ({"unbiased": 1}, {"seed": "x"}):
        with case(options), pytest.raises(InvalidArgumentError):
            RandomK(0.1, **options)  # type: ignore[arg-type]


def test_zstd_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(zstd.importlib, "import_module", missing)
    zstd._library.cache_clear()
    with pytest.raises(InvalidArgumentError, match=r"torch-parameter-server\[compression\]"):
        Zstd()
    with pytest.raises(InvalidArgumentError, match="zstandard"):
        decode(Encoded("zstd", {"level": 3}, (torch.zeros(3, dtype=torch.uint8),)), torch.zeros(3))


# What they take


@pytest.mark.parametrize("codec", LOSSY, ids=str)
def test_lossy_codecs_take_floats_only(codec: Codec) -> None:
    for dtype in (torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn):
        tensor = torch.zeros(4, dtype=dtype)
        with case(dtype):
            assert not codec.takes(tensor)
            with pytest.raises(InvalidArgumentError, match="does not take"):
                codec.encode(tensor)
            with pytest.raises(InvalidArgumentError, match="does not decode"):
                codec.decode(codec.encode(torch.zeros(4)), tensor)


def test_quantized_and_meta_tensors_are_not_taken() -> None:
    assert not Zstd().takes(torch.zeros(3, device="meta"))
    assert not FP16().takes(torch.zeros(3, device="meta"))


@pytest.mark.parametrize("codec", SPARSE, ids=str)
def test_sparse_tensors_stay_sparse(codec: Codec) -> None:
    for dense, count in product(((), (5,), (2, 3)), (0, 1, 6)):
        indices = torch.randint(0, 9, (2, count), generator=torch.Generator().manual_seed(count))
        tensor = torch.sparse_coo_tensor(indices, random((count, *dense)), (9, 10, *dense), check_invariants=True)
        with case(dense, count):
            arrived = there_and_back(codec, tensor)
            summed = tensor.coalesce()
            assert arrived.is_coalesced() and arrived.dtype == tensor.dtype
            assert same_tensors(arrived.indices(), summed.indices())
            assert torch.allclose(arrived.values(), summed.values(), rtol=0.02, atol=0.02)
            assert not isinstance(codec, Zstd) or same_tensors(arrived, summed)


@pytest.mark.parametrize("codec", [each for each in ALL if each not in SPARSE and each.name != "zstd"], ids=str)
def test_the_others_take_dense_tensors_only(codec: Codec) -> None:
    sparse = torch.eye(3).to_sparse()
    assert not codec.takes(sparse)
    with pytest.raises(InvalidArgumentError, match="sparse_coo"):
        codec.encode(sparse)
    with pytest.raises(InvalidArgumentError, match="no sparse"):
        decode(Encoded(codec.name, codec.parameters(), (), (torch.zeros(1, 1, dtype=torch.int32),)), sparse)


def test_coordinates_above_the_range_of_int32_pass() -> None:
    tensor = torch.sparse_coo_tensor([[1, 2**40]], [1.0, 2.0], (2**41,), check_invariants=True)
    for codec in SPARSE:
        arrived, _ = through(codec.encode(tensor))
        like = torch.zeros(()).expand(2**41)
        decoded = decode(arrived, like)
        assert decoded.indices().tolist() == [[1, 2**40]]
        assert torch.allclose(decoded.values(), torch.tensor([1.0, 2.0]), rtol=0.01)


def test_zstd_makes_ascending_rows_small() -> None:
    tensor = torch.sparse_coo_tensor(
        torch.arange(0, 30_000, 3).unsqueeze(0), torch.ones(10_000, 1), (30_000, 1), check_invariants=True
    )
    assert Zstd().encode(tensor).nbytes < 500
    assert Zstd().encode(torch.arange(10_000) % 7).nbytes < 10_000


def test_autograd_takes_no_notice() -> None:
    weight = torch.ones(50, 50, requires_grad=True)
    for codec in ALL:
        encoded = codec.encode(weight * 2)
        assert not any(each.requires_grad for each in encoded.tensors)
        assert not decode(encoded, weight).requires_grad


# NaN and infinity


@pytest.mark.parametrize("codec", [FP16(), BF16(), Zstd()], ids=str)
def test_casts_and_zstd_keep_nan_and_infinity(codec: Codec) -> None:
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")] * 50)
    assert torch.equal(there_and_back(codec, x).nan_to_num(7.0), x.nan_to_num(7.0)) or isinstance(codec, BF16)
    y = there_and_back(codec, x)
    assert torch.equal(y.isnan(), x.isnan()) and torch.equal(y.isinf(), x.isinf()) and torch.equal(y > 0, x > 0)


def test_fp16_overflow_is_infinite_and_does_not_disappear() -> None:
    assert there_and_back(FP16(), torch.tensor([65519.0, 65520.0, -1e9])).tolist() == [
        65504.0,
        float("inf"),
        -float("inf"),
    ]


@pytest.mark.parametrize("codec", [each for each in LOSSY if each.name not in ("fp16", "bf16")], ids=str)
def test_the_others_refuse_them_wherever_they_are(codec: Codec) -> None:
    for shape in ((1,), (3, 700), (400, 500)):
        finite = random(shape)
        for value, place in product((float("nan"), float("inf"), -float("inf")), (0, -1)):
            x, state = finite.clone(), dict[str, Any]()
            x.view(-1)[place] = value
            with case(shape, value, place):
                if isinstance(codec, PowerSGD) and shape == (1,):
                    assert not there_and_back(codec, x).isfinite().all()
                    continue
                with pytest.raises(NonFiniteGradientError, match=codec.name):
                    codec.encode(x, state)
                assert state == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_topk_refuses_more_of_them_than_it_sends(value: float) -> None:
    for numel in (1000, 300_000):
        with pytest.raises(NonFiniteGradientError):
            TopK(0.01).encode(torch.full((numel,), value))


# Codecs of a program's own


class Mean:
    """Sends the mean only."""

    @staticmethod
    def encode(tensor: torch.Tensor) -> dict[str, Any]:
        return {"shape": tensor.shape, "mean": tensor.mean(), "parts": [b"x", torch.zeros(2)]}

    @staticmethod
    def decode(code: dict[str, Any]) -> torch.Tensor:
        return torch.full(code["shape"], code["mean"].item())


def test_an_own_codec_is_named_and_its_code_passes_the_wire() -> None:
    register_codec("mean", Mean)
    codec = codec_named("mean")
    encoded = codec.encode(torch.tensor([[1.0, 3.0]]))
    assert encoded.nbytes == 4 + 8
    arrived, _ = through(encoded)
    assert decode(arrived, torch.zeros(1, 2)).tolist() == [[2.0, 2.0]]
    assert codec == codec_named("mean") and repr(codec) == "Own(name='mean')"


class Raw:
    """A codec of a program's own: the tensor itself, seen as a vector if it is dense."""

    @staticmethod
    def encode(tensor: torch.Tensor) -> dict[str, Any]:
        return {"raw": tensor if tensor.is_sparse else tensor.view(-1), "shape": tensor.shape}

    @staticmethod
    def decode(code: dict[str, Any]) -> torch.Tensor:
        raw: torch.Tensor = code["raw"]
        return raw if raw.is_sparse else raw.view(code["shape"])


def test_what_an_own_codec_encodes_shares_no_memory_with_the_tensor() -> None:
    register_codec("raw", Raw)
    for tensor in (torch.ones(2, 3, requires_grad=True), torch.ones(2, 3).to_sparse()):
        encoded = codec_named("raw").encode(tensor)
        tensor.detach().zero_()
        assert decode(encoded, tensor).sum() == 6


def test_the_result_of_an_own_codec_must_fit() -> None:
    register_codec("mean", Mean)
    encoded = codec_named("mean").encode(torch.ones(3))
    for like in (torch.zeros(4), torch.zeros(3, dtype=torch.float64), torch.zeros(3, 1)):
        with pytest.raises(InvalidArgumentError, match="gave"):
            decode(encoded, like)
    for code in ({}, None, {"shape": 5}):
        with pytest.raises(InvalidArgumentError, match="could not decode"):
            decode(Encoded("mean", {"code": code}), torch.zeros(3))
    for bad in (Encoded("mean"), Encoded("mean", {"code": 1, "x": 2}), Encoded("mean", {"code": 1}, (torch.ones(1),))):
        with pytest.raises(InvalidArgumentError, match="not what"):
            decode(bad, torch.zeros(3))


def test_unknown_names_and_parameters_are_told() -> None:
    with pytest.raises(InvalidArgumentError, match="no codec 'nothing' is known"):
        codec_named("nothing")
    with pytest.raises(InvalidArgumentError, match="no codec 'nothing' is known"):
        decode(Encoded("nothing", {"code": 1}), torch.zeros(3))
    for parameters in ({"block": 1}, {}, {"fraction": 0.1, "seed": 1}, {"fraction": []}, {"fraction": torch.ones(1)}):
        with pytest.raises(InvalidArgumentError):
            codec_named("topk", parameters)
    with pytest.raises(InvalidArgumentError, match="has the parameters"):
        codec_named("randomk", {"fraction": 0.1, "seed": 1})


def test_names_that_are_taken_and_objects_without_the_functions_are_refused() -> None:
    for name in ("topk", "", 5):
        with pytest.raises(InvalidArgumentError, match="cannot be the name"):
            register_codec(name, Mean)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="needs the functions"):
        register_codec("half", object())  # type: ignore[arg-type]


def test_plain_tensors_are_compared_with_the_receivers() -> None:
    like = torch.zeros(2, 3)
    assert decode(torch.ones(2, 3), like).sum() == 6
    assert decode(torch.ones(2, 3).to_sparse(), like).is_sparse
    for bad in (
        torch.ones(3, 2),
        torch.ones(6),
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(2, 3).to_sparse_csr(),
    ):
        with pytest.raises(InvalidArgumentError):
            decode(bad, like)
