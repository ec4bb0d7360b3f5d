"""Tests that gradients are added in the order of the calls, as early as possible, in whatever order they arrive."""

from __future__ import annotations

import functools
import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import Parameter

from ps_service.passes.gradients import Gradient, Gradients, Turn, added
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import Ref
from tests.training import identical

WEIGHT = Parameter(torch.zeros(3))


def gradient(tensor: torch.Tensor, parameter: Parameter = WEIGHT) -> Gradient:
    return Gradient(Ref("ps0", "0" * 32, "weight"), parameter, tensor)


def sparse(tensor: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 2, 0]]), tensor, (3,), check_invariants=True)


def wanted(backwards: list[list[torch.Tensor]]) -> torch.Tensor:
    """The gradients of calls 1, 2, 3 … of each backward, added as torch does."""
    return functools.reduce(added, [functools.reduce(added, reversed(shares)) for shares in backwards])


@settings(deadline=None)
@given(
    shares=st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    nested=st.booleans(),
)
def test_the_order_in_which_they_come_does_not_matter(shares: list[list[bool]], seed: int, nested: bool) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    kinds = [[sparse if is_sparse else torch.clone for is_sparse in kinds] for kinds in shares]
    backwards = [[kind(torch.randn(3) * 10.0 ** rng.randint(-4, 4)) for kind in each] for each in kinds]
    held = Gradients()
    for number, tensors in enumerate(backwards, 1):
        calls = list(enumerate(tensors, 1))
        rng.shuffle(calls)
        for call, tensor in calls:
            after = None if nested else (call + 1) % (len(tensors) + 1)
            place = (7, call) if nested else (call,)
            held.add([gradient(tensor)], Turn(number, place, after))
    found, expected = held.of_each([WEIGHT])[0], wanted(backwards)
    assert found is not None and found.is_sparse == expected.is_sparse
    assert identical(*(each.to_dense() if each.is_sparse else each for each in (found, expected)))


def test_gradients_that_arrive_in_order_are_not_kept() -> None:
    held = Gradients()
    for call, after in [(9, 0), (7, 9), (4, 7)]:
        held.add([gradient(torch.ones(3))], Turn(1, (call,), after))
        assert not held._early
    held.add([gradient(torch.ones(3))], Turn(1, (1,), 2))
    assert list(held._early) == [(1,)]
    held.add([gradient(torch.ones(3))], Turn(1, (2,), 4))
    assert not held._early
    assert held.of_each([WEIGHT])[0].tolist() == [5.0] * 3


def test_nothing_is_lost_when_turns_make_no_sense() -> None:
    held = Gradients()
    for turn in [Turn(1, (1,), 1), Turn(1, (1,), 0), Turn(1, (2, 3), 1), Turn(1, (1,), 0), Turn(2, (0,), 0), None]:
        held.add([gradient(torch.ones(3))], turn)
    for _ in range(2):
        assert held.of_each([WEIGHT])[0].tolist() == [6.0] * 3


@pytest.mark.parametrize("backwards", [1, 2])
def test_the_gradients_that_came_are_not_written_to(backwards: int) -> None:
    given = [torch.ones(3) for _ in range(3 * backwards)]
    held = Gradients()
    for number, tensor in enumerate(given):
        held.add([gradient(tensor)], Turn(1 + number // 3, (3 - number % 3,), number % 3 and 4 - number % 3))
    held.scale([WEIGHT], 2.0)
    assert held.of_each([WEIGHT])[0].tolist() == [6.0 * backwards] * 3
    assert all(tensor.tolist() == [1.0] * 3 for tensor in given)


def test_looking_at_them_in_between_changes_nothing() -> None:
    tensors = [torch.full((3,), 0.1 * number) for number in range(6)]
    held, watched = Gradients(), Gradients()
    for number, (later, earlier) in enumerate(pairwise(reversed(range(1, 7))), 1):
        for each in (held, watched):
            each.add([gradient(tensors[earlier])], Turn(number, (earlier,), later))
        watched.all()
    assert identical(held.of_each([WEIGHT])[0], watched.of_each([WEIGHT])[0])


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_unscaling_reports_its_result(bad: float | None, is_sparse: bool) -> None:
    held, other = Gradients(), Parameter(torch.zeros(3))
    assert held.unscale([WEIGHT], 0.5) == (False, False)
    values = torch.tensor([1.0, 2.0, 4.0 if bad is None else bad])
    held.add([gradient(sparse(values) if is_sparse else values), gradient(torch.ones(3), other)])
    assert held.unscale([WEIGHT, other], 0.5) == (True, bad is not None)
    assert held.unscale([other], 0.5) == (True, False)
    assert held.of_each([other])[0].tolist() == [0.25] * 3
    if bad is None:
        assert held.of_each([WEIGHT])[0].to_dense().tolist() == ([2.5, 0.0, 1.0] if is_sparse else [0.5, 1.0, 2.0])


def test_float16_is_not_unscaled() -> None:
    held, half = Gradients(), Parameter(torch.zeros(3, dtype=torch.float16))
    held.add([gradient(torch.ones(3)), gradient(torch.ones(3, dtype=torch.float16), half)])
    with pytest.raises(InvalidArgumentError, match="float16"):
        held.unscale([WEIGHT, half], 0.5)
    assert held.of_each([WEIGHT])[0].tolist() == [1.0] * 3
