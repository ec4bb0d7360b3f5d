"""Steps of many parameters at once have the bits of torch's own, in parameters and in state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import optim
from torch.nn import Parameter

from ps_service.training import foreach_steps

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")

SHAPES = ((), (3,), (0, 4), (17, 5), (64, 33), (70, 50))
DTYPES = (torch.float32, torch.float64)
OTHERS = (torch.float16, torch.bfloat16, torch.complex64)
ROWS: tuple[Any, ...] = (optim.SGD, optim.Adagrad)
STEPS = 4

numbers = st.sampled_from([0.0, 0.1, 0.7])
sgd = st.fixed_dictionaries({"momentum": numbers, "weight_decay": numbers, "dampening": numbers})
adagrad = st.fixed_dictionaries({"weight_decay": numbers, "eps": st.sampled_from([1e-10, 0.5])})
adam = st.fixed_dictionaries({"weight_decay": numbers, "betas": st.sampled_from([(0.9, 0.999), (0.0, 0.5)])})
rules = st.one_of(
    st.tuples(st.just(optim.SGD), sgd),
    st.tuples(st.just(optim.SGD), st.just({"momentum": 0.9, "nesterov": True, "weight_decay": 0.01})),
    st.tuples(st.just(optim.Adagrad), adagrad),
    st.tuples(st.sampled_from([optim.Adam, optim.AdamW]), adam),
)


@pytest.fixture(scope="module", autouse=True)
def _small_blocks() -> Iterator[None]:
    """The last of the shapes is larger than a block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(foreach_steps, "_BLOCK_BYTES", 10_000)
        yield


class Own(optim.SGD):
    """A class of a trainer's own, whose step may do anything."""


def stepped(optimizer: optim.Optimizer) -> bool:
    """Makes a step, if it is possible without torch's own; returns whether it is."""
    groups = enumerate(optimizer.param_groups)
    present = [(each, i, each.grad) for i, group in groups for each in group["params"] if each.grad is not None]
    parts = foreach_steps.plan(optimizer, present)
    with torch.no_grad():
        for part in parts or ():
            part()
    return parts is not None


class Twins:
    """Two optimizers of the same class over equal parameters."""

    def __init__(self, cls: Any, options: dict[str, Any], *parameters: torch.Tensor) -> None:
        self.both = [[Parameter(each.clone()) for each in parameters] for _ in range(2)]
        # The second parameters have other options in a group of their own.
        self.optimizers = [
            cls([{"params": each[::2]}, {"params": each[1::2], "lr": 0.3}], lr=0.1, **options) for each in self.both
        ]

    def step(self, *gradients: torch.Tensor | None) -> bool:
        """Steps one as torch does, and the other at once; returns whether that was possible."""
        for parameters in self.both:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.clone()
        torchs, ours = self.optimizers
        torchs.step()
        if not (made := stepped(ours)):
            ours.step()
        return made

    def check(self) -> None:
        for one, other in zip(*self.both, strict=True):
            assert torch.equal(one, other)
            states = [
                optimizer.state.get(each, {}) for optimizer, each in zip(self.optimizers, (one, other), strict=True)
            ]
            assert states[0].keys() == states[1].keys()
            for name, value in states[0].items():
                assert (value is None and states[1][name] is None) or torch.equal(value, states[1][name]), name


@given(rule=rules, dtype=st.sampled_from(DTYPES), left_out=st.sets(st.integers(0, 5)), seed=st.integers(0, 99))
def test_dense_gradients(rule: Any, dtype: torch.dtype, left_out: set[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    cls, options = rule

    def some() -> list[torch.Tensor]:
        found = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
        return [each.t().contiguous().t() if each.dim() == 2 else each for each in found]

    twins = Twins(cls, options, *some())
    made = [twins.step(*(None if i in left_out else each for i, each in enumerate(some()))) for _ in range(STEPS)]
    twins.check()
    # The others make their state in the first step.
    at_once = cls is optim.Adagrad or (cls is optim.SGD and not options.get("momentum")) or len(left_out) == len(SHAPES)
    assert made == [at_once, *[True] * (STEPS - 1)]


@given(
    cls=st.sampled_from(ROWS),
    features=st.sampled_from([(1,), (7,), (48,), (3, 5)]),
    rows=st.lists(st.integers(0, 19), max_size=30),
    seed=st.integers(0, 99),
)
def test_rows_of_an_embedding(cls: Any, features: tuple[int, ...], rows: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    twins = Twins(cls, {}, torch.randn(20, *features, generator=generator), torch.randn(3, generator=generator))
    made = []
    for _ in range(STEPS):
        values = torch.randn(len(rows), *features, generator=generator)
        gradient = torch.sparse_coo_tensor(torch.tensor([rows], dtype=torch.int64), values, (20, *features))
        made.append(twins.step(gradient, torch.randn(3, generator=generator)))
    twins.check()
    assert all(made)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        *((optim.SGD, {name: True}) for name in ("maximize", "foreach", "fused")),
        (optim.Adagrad, {"lr_decay": 0.1}),
        (optim.Adam, {"amsgrad": True}),
        (optim.RMSprop, {}),
        (Own, {}),
    ],
    ids=str,
)
def test_what_torch_does_in_another_way_is_left_to_torch(cls: Any, options: dict[str, Any]) -> None:
    twins = Twins(cls, options, torch.ones(2), torch.ones(2))
    assert [twins.step(torch.ones(2), torch.ones(2)) for _ in range(2)] == [False, False]
    twins.check()


@pytest.mark.parametrize(
    "parameters",
    [
        *(pytest.param([torch.ones(2), torch.ones(2, dtype=each)], id=str(each)) for each in OTHERS),
        pytest.param([torch.ones(2), torch.empty(2, device="meta")], id="device"),
    ],
)
def test_nothing_is_changed_where_one_parameter_is_left_to_torch(parameters: list[torch.Tensor]) -> None:
    made = [Parameter(each) for each in parameters]
    for each in made:
        each.grad = torch.ones_like(each)
    assert not stepped(optim.SGD(made, lr=0.1))
    assert torch.equal(made[0], torch.ones(2))


def test_a_learning_rate_that_is_a_tensor_is_left_to_torch() -> None:
    parameter = Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    assert not stepped(optim.SGD([parameter], lr=torch.tensor(0.1)))


@pytest.mark.parametrize(
    ("cls", "options", "indices", "values"),
    [
        pytest.param(optim.SGD, {"momentum": 0.9}, [[1]], [[1.0, 1.0]], id="momentum"),
        pytest.param(optim.Adagrad, {}, [[1], [0]], [1.0], id="single_numbers"),
        pytest.param(optim.Adagrad, {}, [[1]], [1.0], id="a_vector"),
    ],
)
def test_other_sparse_gradients_are_left_to_torch(cls: Any, options: dict[str, Any], indices: Any, values: Any) -> None:
    shape = (3, 2)[: len(indices) + torch.tensor(values).dim() - 1]
    parameter = Parameter(torch.ones(shape))
    optimizer = cls([parameter], lr=0.1, **options)
    for _ in range(2):
        parameter.grad = torch.sparse_coo_tensor(torch.tensor(indices), torch.tensor(values), shape)
        assert not stepped(optimizer)
        optimizer.step()
