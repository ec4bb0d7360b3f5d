"""Tests that torch draws the same numbers in a seeded block as alone after `torch.manual_seed`, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import distributions, nn

from ps_wire.numerics.random import Seeded, way_to_draw
from tests.cases import case

X = torch.linspace(-2, 2, 240).view(12, 20)
Q = X.view(1, 2, 6, 20)

DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "dropout": lambda: F.dropout(X, 0.3),
    "dropout in place": lambda: F.dropout(X.clone(), 0.3, inplace=True),
    "alpha dropout": lambda: F.alpha_dropout(X, 0.3, training=True),
    "dropout of features": lambda: F.dropout2d(X.view(2, 6, 20, 1), 0.5),
    "alpha dropout of features": lambda: F.feature_alpha_dropout(X, 0.5, training=True),
    "native dropout": lambda: torch.native_dropout(X, 0.3, True)[0],
    "native dropout of nothing": lambda: torch.native_dropout(X, 0.0, True)[0],
    "native dropout of all": lambda: torch.native_dropout(X, 1.0, True)[0],
    "native dropout in evaluation": lambda: torch.native_dropout(X, 0.3, False)[0],
    "rrelu": lambda: F.rrelu(X, training=True),
    "rrelu in place": lambda: F.rrelu(X.clone(), training=True, inplace=True),
    "gumbel softmax": lambda: F.gumbel_softmax(X),
    "attention": lambda: F.scaled_dot_product_attention(Q, Q, Q, dropout_p=0.3),
    "fractional pooling": lambda: F.fractional_max_pool2d(Q, 2, output_ratio=(0.5, 0.5)),
    "rand": lambda: torch.rand(5, 3),
    "rand into": lambda: torch.rand(5, out=torch.empty(5)),
    "rand like": lambda: torch.rand_like(X),
    "randn": lambda: torch.randn(40),
    "randn like": lambda: torch.randn_like(X),
    "randint": lambda: torch.randint(10, (5,)),
    "randint between": lambda: torch.randint(3, 10, (5,)),
    "randint like": lambda: torch.randint_like(X, 10),
    "randint between like": lambda: torch.randint_like(X, 3, 10),
    "randperm": lambda: torch.randperm(30),
    "randperm into": lambda: torch.randperm(5, out=torch.empty(5, dtype=torch.int64)),
    "multinomial": lambda: torch.multinomial(torch.rand(3, 9), 4),
    "normal": lambda: torch.normal(X, 2.0),
    "normal numbers": lambda: torch.normal(0.0, 1.0, (4,)),
    "bernoulli": lambda: torch.bernoulli(torch.rand(30)),
    "poisson": lambda: torch.poisson(X.abs() * 3),
    "binomial": lambda: torch.binomial(torch.ones(9) * 10, torch.rand(9)),
    "exponential": lambda: torch.empty(20).exponential_(),
    "cauchy": lambda: torch.empty(9).cauchy_(),
    "log normal": lambda: torch.empty(9).log_normal_(),
    "geometric": lambda: torch.empty(9).geometric_(0.3),
    "random": lambda: torch.empty(9).random_(),
    "random below": lambda: torch.empty(9).random_(5),
    "random between": lambda: torch.empty(9).random_(2, 8),
    "dirichlet": lambda: distributions.Dirichlet(torch.ones(3)).sample((4,)),
    "gamma": lambda: distributions.Gamma(torch.ones(5), torch.ones(5)).sample(),
    "beta": lambda: distributions.Beta(torch.ones(5), torch.ones(5)).rsample(),
    "student": lambda: distributions.StudentT(torch.ones(5) * 3).sample(),
    "uniform": lambda: nn.init.uniform_(torch.empty(7)),
    "kaiming": lambda: nn.init.kaiming_uniform_(torch.empty(7, 7)),
    "orthogonal": lambda: nn.init.orthogonal_(torch.empty(7, 7)),
    "truncated": lambda: nn.init.trunc_normal_(torch.empty(7, 7)),
    "sparse": lambda: nn.init.sparse_(torch.empty(7, 7), 0.5),
}


def alone(draw: Callable[[], torch.Tensor], seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [draw(), draw()]


@pytest.mark.parametrize(
    "mode", [torch.enable_grad, torch.no_grad, torch.inference_mode], ids=lambda mode: mode.__name__
)
def test_random_numbers_depend_on_the_seed_alone(mode: Any) -> None:
    for name, draw in DRAWS.items():
        with case(name), mode():
            wanted = alone(draw, 7)
            torch.manual_seed(99)
            before = torch.get_rng_state()
            with Seeded(7):
                found = [draw(), draw()]
            assert torch.equal(before, torch.get_rng_state()), "it drew from the generator of the process"
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(5, 5),
        lambda: nn.Embedding(5, 5),
        lambda: nn.Conv2d(3, 4, 3),
        lambda: nn.LSTM(5, 5, 2),
        lambda: nn.TransformerEncoderLayer(8, 2),
        lambda: nn.Bilinear(3, 4, 5),
    ],
)
def test_constructors_draw_the_same_numbers_as_alone(make: Callable[[], nn.Module]) -> None:
    wanted = alone(lambda: flat(make()), 3)
    with Seeded(3):
        assert all(torch.equal(flat(make()), each) for each in wanted)


@pytest.mark.parametrize("kind", ["lstm", "gru", "transformer"])
def test_layers_with_dropout_inside_and_their_gradients(kind: str) -> None:
    layers = {
        "lstm": nn.LSTM(5, 5, 2, dropout=0.5),
        "gru": nn.GRU(5, 5, 2, dropout=0.5),
        "transformer": nn.TransformerEncoderLayer(5, 1),
    }
    layer, x = layers[kind], torch.randn(3, 2, 5)

    def run() -> torch.Tensor:
        y = layer(x)
        y = y[0] if isinstance(y, tuple) else y
        return torch.cat([each.flatten() for each in torch.autograd.grad(y.sin().sum(), list(layer.parameters()))])

    wanted = alone(run, 5)
    with Seeded(5):
        assert all(torch.equal(run(), each) for each in wanted)


def test_a_generator_of_the_codes_own_is_left_alone() -> None:
    own = torch.Generator().manual_seed(1)
    with Seeded(7):
        found = [
            torch.rand(3, generator=own),
            torch.empty(3).normal_(generator=own),
            torch.bernoulli(X.abs() / 2, generator=own),
        ]
    own.manual_seed(1)
    wanted = [
        torch.rand(3, generator=own),
        torch.empty(3).normal_(generator=own),
        torch.bernoulli(X.abs() / 2, generator=own),
    ]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_threads_do_not_disturb_each_other() -> None:
    results: dict[int, list[torch.Tensor]] = {}
    start = threading.Barrier(5, timeout=20)

    def draw(seed: int) -> None:
        start.wait()
        with Seeded(seed):
            results[seed] = [F.dropout(X, 0.5) for _ in range(50)]

    def disturb() -> None:
        start.wait()
        for _ in range(500):
            torch.rand(10)

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in range(4)] + [threading.Thread(target=disturb)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, found in results.items():
        torch.manual_seed(seed)
        assert all(torch.equal(each, F.dropout(X, 0.5)) for each in found)


ELSEWHERE = (
    "cudnn",
    "miopen",
    "mps",
    "flash",
    "efficient",
    "triton",
    "overrideable",
    "mem_eff",
    "fused_sdp_choice",
    "nested",
)
"""In the names of operations that draw nothing on a CPU."""


def test_every_operation_of_torch_that_draws_is_known() -> None:
    """A release of torch may bring new ones: each needs a way to give it a generator, or to stand in the list above."""
    unknown = []
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, base, None) if name.startswith("aten::") else None
        operation = getattr(packet, overload or "default", None)
        if operation is None or torch.Tag.nondeterministic_seeded not in operation.tags:
            continue
        if way_to_draw(operation) is None and not any(word in name for word in ELSEWHERE):
            unknown.append(name)
    # It writes into tensors that nothing in torch gives it.
    assert unknown == ["aten::native_dropout.out"]
