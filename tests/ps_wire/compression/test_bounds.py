"""What comes out of a codec is within its stated bound of what went in, and equals a plain reference."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from torch import nn

from ps_wire.compression import sparsifiers
from ps_wire.compression.codec import Codec, Encoded, work_dtype
from ps_wire.compression.registry import BF16, FP16, Int8, PowerSGD, RandomK, Sign, TopK, Zstd, decode
from ps_wire.errors import NonFiniteGradientError
from tests.cases import case
from tests.ps_wire import strategies
from tests.ps_wire.compression.tensors import ALL, DTYPES, floats, random, there_and_back, through
from tests.ps_wire.exact import same_tensors


def blocks(tensor: torch.Tensor, block: int) -> list[torch.Tensor]:
    """The blocks of a tensor in float64."""
    return list(tensor.reshape(-1).double().split(block)) if tensor.numel() else []


def rounding(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """By how much arithmetic and the last rounding to a dtype may change values."""
    info, work = torch.finfo(dtype), torch.finfo(work_dtype(dtype))
    return values.abs() * (info.eps + 4 * work.eps) + info.smallest_normal * info.eps


@given(floats())
def test_casts_round_to_nearest(tensor: torch.Tensor) -> None:
    for codec, dtype in ((FP16(), torch.float16), (BF16(), torch.bfloat16)):
        assert same_tensors(there_and_back(codec, tensor), tensor.to(dtype).to(tensor.dtype).contiguous())


@given(floats())
def test_casts_keep_to_their_bounds(tensor: torch.Tensor) -> None:
    x = tensor.double()
    x = torch.where(x.abs() <= 65000, x, 0.0)
    tensor = x.to(tensor.dtype)
    for codec, relative, absolute in ((FP16(), 2**-11, 2**-25), (BF16(), 2**-8, 2**-134)):
        error = (there_and_back(codec, tensor).double() - x).abs()
        assert (error <= x.abs() * relative * (1 + 1e-3) + absolute * (1 + 1e-3) + rounding(x, tensor.dtype)).all()


@given(floats())
def test_int8_is_within_half_a_scale(tensor: torch.Tensor) -> None:
    x = tensor.reshape(-1).double()
    for block in (1, 3, 256):
        y = there_and_back(Int8(block), tensor).reshape(-1).double()
        largest = nn.functional.pad(x.abs(), (0, -x.numel() % block)).view(-1, block).amax(1)
        scale = (largest / 127).clamp(min=torch.finfo(work_dtype(tensor.dtype)).tiny)
        scale = scale.repeat_interleave(block)[: x.numel()]
        assert ((y - x).abs() <= scale / 2 * (1 + 1e-4) + rounding(x, tensor.dtype)).all()


@given(floats())
def test_sign_sends_signs_and_mean_magnitudes(tensor: torch.Tensor) -> None:
    arrived = there_and_back(Sign(block=8), tensor)
    for x, y in zip(blocks(tensor, 8), blocks(arrived, 8), strict=True):
        expected = torch.where(x >= 0, x.abs().mean(), -x.abs().mean())
        assert ((y - expected).abs() <= 2 * rounding(expected, tensor.dtype)).all()


def test_sign_leaves_out_what_its_formula_says() -> None:
    x = random((4096,), torch.float64)
    error = (there_and_back(Sign(), x) - x).square().sum().item()
    expected = sum((each.square().sum() - each.abs().sum() ** 2 / 2048).item() for each in x.split(2048))
    assert error == pytest.approx(expected)


@given(floats())
def test_topk_sends_exactly_the_largest(tensor: torch.Tensor) -> None:
    for part in (0.01, 0.3, 1):
        arrived, x = there_and_back(TopK(part), tensor).reshape(-1), tensor.reshape(-1)
        count = math.ceil(part * x.numel())
        sent = TopK(part).encode(tensor).tensors
        assert sent[0].tolist() == sorted({*sent[0].tolist()})
        assert len(sent[0]) == len(sent[1]) == count
        assert same_tensors(arrived[sent[0].long()], x[sent[0].long()])
        magnitudes = x.double().abs().sort(descending=True).values
        assert torch.equal(sent[1].double().abs().sort(descending=True).values, magnitudes[:count])
        assert arrived.count_nonzero() <= count


LONG = 140_001
"""A little more elements than are searched without a sample."""


@pytest.mark.parametrize("kind", ["random", "few", "none", "ties", "growing", "periodic"])
def test_topk_of_a_long_vector_is_the_same_without_a_sample(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _check_topk(kind, LONG, 0.01, torch.float32)
    # The sample is smaller in proportion.
    monkeypatch.setattr(sparsifiers, "_SAMPLE", sparsifiers._SAMPLE // 16)
    for part, dtype in product((1e-4, 0.01, 0.2, 0.5), DTYPES):
        with case(part, dtype):
            _check_topk(kind, LONG // 16, part, dtype)


def _check_topk(kind: str, numel: int, part: float, dtype: torch.dtype) -> None:
    x = random((numel,), dtype)
    match kind:
        case "few":
            x *= torch.arange(numel) % 997 == 5
        case "none":
            x.zero_()
        case "ties":
            x = x.sign()
        case "growing":
            x = (torch.arange(numel) / numel).to(dtype)
        case "periodic":
            x = (torch.arange(numel) % 32 == 0).to(dtype)
    positions, values = TopK(part).encode(x).tensors
    count = math.ceil(part * numel)
    assert len(positions) == count
    assert (positions[1:] > positions[:-1]).all()
    assert torch.equal(values, x[positions.long()])
    others = x.abs()
    others[positions.long()] = 0
    assert others.max() <= values.abs().min()


@given(floats())
def test_randomk_sends_different_elements_as_they_are(tensor: torch.Tensor) -> None:
    state: dict[str, object] = {}
    for _ in range(3):
        encoded = RandomK(0.3).encode(tensor, state)
        arrived, x = decode(encoded, tensor).reshape(-1), tensor.reshape(-1)
        step, begin = encoded.tensors[0].tolist()
        count = math.ceil(0.3 * x.numel())
        positions = [(step * i + begin) % x.numel() for i in range(count)]
        assert len({*positions}) == count
        expected = torch.zeros_like(x, memory_format=torch.contiguous_format)
        expected[positions] = x[positions]
        assert same_tensors(arrived, expected)


def test_every_element_is_as_likely_with_randomk() -> None:
    numel, rounds = 60, 2000
    for unbiased, scale in ((False, 1.0), (True, 5.0)):
        state: dict[str, object] = {}
        codec = RandomK(0.2, unbiased=unbiased, seed=3)
        x = random((numel,))
        sums = sum(decode(codec.encode(x, state), x) for _ in range(rounds)) / rounds
        deviation = scale * x.abs() * math.sqrt(0.2 * 0.8 / rounds)
        assert ((sums - 0.2 * scale * x).abs() <= 5 * deviation + 1e-6).all()


def test_randomk_is_repeated_by_its_seed_and_leaves_torch_alone() -> None:
    x, before = random((500,)), torch.get_rng_state()

    def positions(codec: RandomK, state: dict[str, object]) -> list[list[int]]:
        return [codec.encode(x, state).tensors[0].tolist() for _ in range(4)]

    first = positions(RandomK(0.1, seed=7), {})
    assert first == positions(RandomK(0.1, seed=7), {})
    assert len({tuple(each) for each in first}) == 4
    assert first != positions(RandomK(0.1), {})
    assert torch.equal(torch.get_rng_state(), before)
    assert RandomK(0.1, seed=7).encode(x).parameters == {"fraction": 0.1, "unbiased": False}


@given(floats())
def test_powersgd_never_leaves_out_more_than_there_is(tensor: torch.Tensor) -> None:
    for rank in (1, 2):
        x, y = tensor.double(), there_and_back(PowerSGD(rank), tensor).double()
        slack = 1e-5 * x.norm() + rounding(y, tensor.dtype).norm() + 1e-37
        assert (y - x).norm() <= x.norm() + slack


@pytest.mark.parametrize("shape", [(30, 40), (40, 3, 10), (16, 4, 3, 3)], ids=str)
def test_powersgd_is_exact_up_to_its_rank(shape: tuple[int, ...]) -> None:
    x = (random((shape[0], 2)) @ random((2, math.prod(shape[1:])), seed=1)).view(shape)
    assert torch.allclose(there_and_back(PowerSGD(2), x), x, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(there_and_back(PowerSGD(1), x), x, rtol=0.1, atol=0.1)


def test_powersgd_comes_closer_with_each_message_of_the_same_gradient() -> None:
    x, state = random((60, 50)), dict[str, object]()
    errors = [(decode(PowerSGD(4).encode(x, state), x) - x).norm().item() for _ in range(20)]
    left, values, right = torch.linalg.svd(x)
    best = (left[:, :4] * values[:4] @ right[:4] - x).norm().item()
    assert errors == sorted(errors, reverse=True)
    assert best <= errors[-1] <= 1.02 * best < errors[0]


@pytest.mark.parametrize("shape", [(), (7,), (2, 2), (1, 50), (50, 1), (0, 5)], ids=str)
def test_powersgd_sends_small_tensors_as_they_are(shape: tuple[int, ...]) -> None:
    x = random(shape)
    assert same_tensors(there_and_back(PowerSGD(2), x), x)


@given(strategies.dense_tensors())
def test_zstd_keeps_every_bit_of_every_dtype(tensor: torch.Tensor) -> None:
    if tensor.dtype is torch.bool:
        tensor = tensor.view(torch.uint8).ne(0)
    assert same_tensors(there_and_back(Zstd(), tensor), tensor)


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_empty_single_and_strided_tensors_pass(codec: Codec) -> None:
    for dtype in DTYPES:
        for shape in ((0,), (3, 0), (), (1,), (1, 1, 1)):
            arrived = there_and_back(codec, torch.ones(shape, dtype=dtype))
            assert (arrived.shape, arrived.dtype) == (shape, dtype)
            assert torch.allclose(arrived, torch.ones((), dtype=dtype), rtol=0.01)
        wide = random((40, 30), dtype)
        for view in (wide.T, wide[::2, ::3], wide[:, :1].expand(40, 30)):
            copy = view.clone(memory_format=torch.contiguous_format)
            assert torch.equal(there_and_back(codec, view), there_and_back(codec, copy)), (dtype, view.stride())


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_a_message_shares_no_memory_with_the_gradient(codec: Codec) -> None:
    for dtype in DTYPES:
        for shape in ((), (40, 30)):
            x = random(shape, dtype)
            encoded = codec.encode(x)
            before = decode(encoded, x)
            x.fill_(7)
            assert torch.equal(decode(encoded, x), before)


@pytest.mark.parametrize("codec", [Int8(), TopK(0.01), RandomK(0.2), BF16(), Zstd()], ids=str)
def test_the_ends_of_the_range_of_float32_stay_finite(codec: Codec) -> None:
    for value in (3e38, -3e38, 1e-45, 1e-38):
        assert there_and_back(codec, torch.full((50, 100), value)).isfinite().all(), value


@pytest.mark.parametrize("codec", [Sign(), PowerSGD()], ids=str)
def test_sums_that_overflow_are_refused(codec: Codec) -> None:
    with pytest.raises(NonFiniteGradientError, match="overflow"):
        codec.encode(torch.full((50, 100), 3e38))
    assert there_and_back(codec, torch.full((50, 100), 1e-38)).isfinite().all()


def test_an_encoded_tensor_knows_its_bytes() -> None:
    x = random((1000,))
    assert FP16().encode(x).nbytes == 2000
    assert Int8(256).encode(x).nbytes == 1000 + 4 * 4
    assert TopK(0.01).encode(x).nbytes == 10 * (4 + 4)
    assert RandomK(0.01).encode(x).nbytes == 10 * 4 + 16
    assert Sign(512).encode(x).nbytes == 125 + 2 * 4
    assert PowerSGD(2).encode(x.view(20, 50)).nbytes == (20 + 50) * 2 * 4
    assert Zstd().encode(torch.zeros(1000)).nbytes < 40


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_the_rest_of_a_message_is_small(codec: Codec) -> None:
    for shape in ((), (100, 200)):
        encoded = codec.encode(random(shape))
        arrived, on_wire = through(encoded)
        assert encoded.nbytes <= on_wire <= encoded.nbytes + 160
        assert same_messages(arrived, encoded)


def same_messages(one: Encoded, other: Encoded) -> bool:
    return (one.codec, one.parameters) == (other.codec, other.parameters) and all(
        same_tensors(a, b) for a, b in zip(one.tensors, other.tensors, strict=True)
    )
