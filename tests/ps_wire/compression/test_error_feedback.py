"""Error feedback: what is left out is sent later, refusals are undone, and a model converges because of it."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from ps_wire.compression.choice import Choice
from ps_wire.compression.codec import Codec, Encoded
from ps_wire.compression.error_feedback import ErrorFeedback
from ps_wire.compression.registry import BF16, FP16, Int8, PowerSGD, RandomK, Sign, TopK, Zstd, decode, register_codec
from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError
from tests.cases import case
from tests.ps_wire.compression.tensors import DTYPES, LOSSY, random
from tests.ps_wire.compression.test_codecs import Mean, Raw
from tests.ps_wire.exact import same_tensors


def feedback(codec: Codec | str, enabled: bool = True) -> ErrorFeedback:
    return ErrorFeedback(Choice(codec, min_numel=1), enabled)


def sent(sender: ErrorFeedback, gradient: torch.Tensor, name: str = "w") -> torch.Tensor:
    """What a receiver decodes."""
    return decode(sender.encode(name, gradient), gradient)


WITH_FEEDBACK = [each for each in LOSSY if each.feedback]


@pytest.mark.parametrize("codec", WITH_FEEDBACK, ids=str)
def test_nothing_is_lost_but_one_residual(codec: Codec) -> None:
    for dtype in DTYPES:
        sender = feedback(codec)
        arrived = given = torch.zeros(20, 30, dtype=torch.float64)
        with case(dtype):
            for step in range(12):
                gradient = random((20, 30), dtype, seed=step)
                before = gradient.clone()
                given = given + gradient.double()
                arrived = arrived + sent(sender, gradient).double()
                assert torch.equal(gradient, before)
            residual = sender.residual("w")
            assert residual is not None
            assert residual.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
            assert torch.allclose(arrived + residual.double(), given, rtol=0, atol=1e-3)


@pytest.mark.parametrize("codec", [TopK(0.1), RandomK(0.1), Sign(), PowerSGD(1)], ids=str)
def test_residuals_stay_bounded(codec: Codec) -> None:
    sender, gradient = feedback(codec), random((40, 40))
    sizes = []
    for _ in range(150):
        sent(sender, gradient)
        residual = sender.residual("w")
        assert residual is not None
        sizes.append((residual.norm() / gradient.norm()).item())
    assert max(sizes[75:]) < 1.5 * max(sizes[:75])


def test_each_parameter_has_its_own() -> None:
    sender = feedback(TopK(0.5))
    assert sent(sender, torch.tensor([1.0, 2.0]), "a").tolist() == [0, 2]
    assert sent(sender, torch.tensor([5.0, 1.0]), "b").tolist() == [5, 0]
    assert sent(sender, torch.tensor([2.0, 1.0]), "a").tolist() == [3, 0]
    assert [sender.residual(name).tolist() for name in "ab"] == [[0, 1], [0, 1]]  # type: ignore[union-attr]
    assert sender.residual("c") is None


def test_without_it_nothing_is_kept() -> None:
    sender = feedback(TopK(0.5), enabled=False)
    for _ in range(3):
        assert sent(sender, torch.tensor([1.0, 2.0])).tolist() == [0, 2]
    assert sender.residual("w") is None


@pytest.mark.parametrize("codec", [Zstd(), RandomK(0.5, unbiased=True)], ids=str)
def test_some_codecs_have_no_residual(codec: Codec) -> None:
    sender = feedback(codec)
    sent(sender, random((30,)))
    assert sender.residual("w") is None


def test_sparse_gradients_and_those_without_a_codec_have_none() -> None:
    sender = ErrorFeedback(Choice({"w": FP16(), "default": None}, min_numel=1))
    rows = torch.sparse_coo_tensor([[1, 1]], torch.ones(2, 3) / 3, (10, 3), check_invariants=True)
    assert isinstance(sender.encode("w", rows), Encoded)
    plain = torch.ones(3)
    assert sender.encode("other", plain) is plain
    assert sender.state_dict() == {"residuals": {}, "states": {}}


@pytest.mark.parametrize("codec", [FP16(), BF16(), Int8()], ids=str)
def test_a_sparse_gradient_between_dense_ones_leaves_the_residual(codec: Codec) -> None:
    sender = feedback(codec)
    sent(sender, random((20, 30)))
    before = sender.residual("w")
    assert before is not None
    sent(sender, random((20, 30), seed=1).to_sparse())
    assert same_tensors(sender.residual("w"), before)  # type: ignore[arg-type]
    gradient = random((20, 30), seed=2)
    arrived = sent(sender, gradient)
    torch.testing.assert_close(arrived + sender.residual("w"), gradient + before)
    sender.rollback()
    assert same_tensors(sender.residual("w"), before)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_after_a_sparse_gradient_never_reach_a_residual(value: float) -> None:
    sender = feedback(FP16())
    sent(sender, random((20, 30)))
    before = sender.residual("w")
    sent(sender, random((20, 30), seed=1).to_sparse())
    with pytest.raises(NonFiniteGradientError):
        sender.encode("w", torch.full((20, 30), value))
    assert same_tensors(sender.residual("w"), before)  # type: ignore[arg-type]


def test_an_own_codec_has_one() -> None:
    register_codec("mean", Mean)
    sender = feedback("mean")
    assert sent(sender, torch.tensor([1.0, 3.0])).tolist() == [2, 2]
    assert sender.residual("w").tolist() == [-1, 1]  # type: ignore[union-attr]
    encoded = sender.encode("w", torch.tensor([5.0, 5.0]))
    assert isinstance(encoded, Encoded)
    sender.put_back("w", encoded)
    assert sender.residual("w").tolist() == [4, 6]  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_gradients_have_none(dtype: torch.dtype) -> None:
    register_codec("raw", Raw)
    sender, gradient = feedback("raw"), torch.complex(random((20, 30)), random((20, 30), seed=1)).to(dtype)
    for _ in range(2):
        assert same_tensors(sent(sender, gradient), gradient)
    assert sender.residual("w") is None


def test_an_own_codec_that_sends_the_tensor_itself_leaves_nothing_out() -> None:
    register_codec("raw", Raw)
    sender, gradient = feedback("raw"), random((20, 30))
    for _ in range(3):
        assert same_tensors(sent(sender, gradient), gradient)
        assert sender.residual("w").count_nonzero() == 0  # type: ignore[union-attr]


# A refused message


@pytest.mark.parametrize("codec", WITH_FEEDBACK, ids=str)
def test_a_rollback_is_as_if_nothing_had_been_encoded(codec: Codec) -> None:
    sender, other = feedback(codec), feedback(codec)
    for step in range(4):
        gradient = random((20, 30), seed=step)
        sent(sender, random((20, 30), seed=100 + step))
        sender.rollback()
        sender.rollback()
        assert same_tensors(sent(sender, gradient), sent(other, gradient))
        assert same_tensors(sender.residual("w"), other.residual("w"))  # type: ignore[arg-type]


def test_a_rollback_of_some_leaves_the_others() -> None:
    sender = feedback(TopK(0.5))
    for name in "ab":
        sent(sender, torch.tensor([1.0, 2.0]), name)
    sender.rollback(["a", "unknown"])
    assert sender.residual("a") is None
    assert sender.residual("b").tolist() == [1, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize("codec", WITH_FEEDBACK, ids=str)
def test_what_is_put_back_is_sent_later(codec: Codec) -> None:
    for dtype in DTYPES:
        with case(dtype):
            _check_put_back(codec, dtype)


def _check_put_back(codec: Codec, dtype: torch.dtype) -> None:
    sender = feedback(codec)
    given = torch.zeros(20, 30, dtype=torch.float64)
    arrived = given.clone()
    refused = []
    for step in range(6):
        gradient = random((20, 30), dtype, seed=step)
        given += gradient.double()
        encoded = sender.encode("w", gradient)
        assert isinstance(encoded, Encoded)
        if step % 2:
            refused.append(encoded)
        else:
            arrived += decode(encoded, gradient).double()
    for encoded in refused:
        sender.put_back("w", encoded)
    before = sender.residual("w")
    sender.rollback()
    assert same_tensors(sender.residual("w"), before)  # type: ignore[arg-type]
    assert torch.allclose(arrived + before.double(), given, rtol=0, atol=1e-3)  # type: ignore[union-attr]


@pytest.mark.parametrize("codec", WITH_FEEDBACK, ids=str)
@pytest.mark.parametrize("later", ["kept", "rolled back"])
def test_what_is_retracted_is_as_if_it_had_not_been_encoded(codec: Codec, later: str) -> None:
    sender = feedback(codec)
    sent(sender, random((20, 30)))
    expected = sender.residual("w")
    assert expected is not None
    gradient, more = random((20, 30), seed=1), random((20, 30), seed=2)
    refused = sender.encode("w", gradient)
    arrived = sent(sender, more)
    assert isinstance(refused, Encoded)
    sender.retract("w", gradient, refused)
    if later == "kept":
        expected = expected + more - arrived
    else:
        sender.rollback()
    torch.testing.assert_close(sender.residual("w"), expected, rtol=0, atol=1e-4)


def test_only_a_residual_takes_something_back() -> None:
    with pytest.raises(InvalidArgumentError, match="no residual"):
        feedback(TopK(0.1)).put_back("w", TopK(0.1).encode(torch.ones(3)))


@pytest.mark.parametrize("codec", WITH_FEEDBACK, ids=str)
def test_nan_and_infinity_never_reach_a_residual(codec: Codec) -> None:
    for value in (float("nan"), float("inf")):
        sender = feedback(codec)
        sent(sender, random((20, 30)))
        before, state = sender.residual("w"), sender.state_dict()["states"]
        bad = random((20, 30), seed=1)
        bad[3, 4] = value
        with case(value), pytest.raises(NonFiniteGradientError):
            sender.encode("w", bad)
        sender.rollback()
        assert same_tensors(sender.residual("w"), before), value  # type: ignore[arg-type]
        assert str(sender.state_dict()["states"]) == str(state), value


def test_an_overflow_of_fp16_is_refused() -> None:
    sender = feedback(FP16())
    with pytest.raises(NonFiniteGradientError):
        sender.encode("w", torch.tensor([1e6]))
    assert sender.residual("w") is None


def test_another_shape_needs_a_new_beginning() -> None:
    sender = feedback(TopK(0.5))
    sent(sender, torch.ones(4))
    with pytest.raises(InvalidArgumentError, match="forget"):
        sender.encode("w", torch.ones(2, 2))
    sender.forget(["w", "unknown"])
    sent(sender, torch.ones(2, 2))
    sender.forget()
    assert sender.residual("w") is None


# Its state


@pytest.mark.parametrize("codec", [TopK(0.1), RandomK(0.1), PowerSGD(2), BF16()], ids=str)
def test_it_goes_on_from_a_saved_state(codec: Codec, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("state") / "feedback.pt"
    first, second = feedback(codec), feedback(codec)
    for step in range(3):
        sent(first, random((20, 30), seed=step))
    torch.save(first.state_dict(), path)
    second.load_state_dict(torch.load(path, weights_only=True))
    for step in range(3, 6):
        gradient = random((20, 30), seed=step)
        assert same_tensors(sent(first, gradient), sent(second, gradient))


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"residuals": {}, "states": None},
        {"residuals": {"w": 1}, "states": {}},
        {"residuals": {"w": torch.ones(3, dtype=torch.int64)}, "states": {}},
        {"residuals": {}, "states": {"w": 1}},
    ],
    ids=str,
)
def test_another_state_is_refused(state: dict[str, object]) -> None:
    sender = feedback(TopK(0.5))
    sent(sender, torch.tensor([1.0, 2.0]))
    with pytest.raises(InvalidArgumentError):
        sender.load_state_dict(state)
    assert sender.residual("w").tolist() == [1, 0]  # type: ignore[union-attr]


# What it is for


@cache
def distance(codec: Codec | None, enabled: bool = True, steps: int = 300) -> float:
    """How far SGD with decaying steps is from the minimum of a quadratic, as a part of the distance at the start.

    Three senders have different minima, and the receiver adds what they send. So the largest elements of each gradient
    stay the same, and do not cancel within what one sender sends.
    """
    targets = [random((1000,), seed=seed) * 3 for seed in range(3)]
    best = sum(targets) / 3
    scales = torch.linspace(0.2, 1, 1000)
    senders = [ErrorFeedback(Choice(codec, min_numel=1), enabled) for _ in targets]
    point = torch.zeros(1000)
    for step in range(steps):
        total = torch.zeros(1000)
        for sender, target in zip(senders, targets, strict=True):
            total += sent(sender, scales * (point - target))
        point -= 0.2 / (1 + 9 * step / steps) / 3 * total
    return ((point - best).norm() / best.norm()).item()


@pytest.mark.parametrize("codec", [TopK(0.05), Sign(), Int8(), RandomK(0.05, seed=1)], ids=str)
def test_a_quadratic_is_solved_with_it(codec: Codec) -> None:
    assert distance(None) < 0.02
    assert distance(codec) < 0.1


def test_topk_and_sign_are_visibly_worse_without_it() -> None:
    for codec in (TopK(0.05), Sign()):
        assert distance(codec, enabled=False) > 3 * distance(codec)
        assert distance(codec, enabled=False) > 0.2
