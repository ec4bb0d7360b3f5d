"""Distributed optimizers, under the names that torch's own suite gives these situations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import optim

from ps_wire.errors import InvalidArgumentError, NotAllowedError, RemoteError
from tests.rpc import situations as s
from trainer_client import autograd, rpc
from trainer_client.optim import DistributedOptimizer, clip_grad_norm_

SEEDS = (1, 2)


def modules() -> list[rpc.RRef]:
    return [rpc.remote(f"worker{seed}", s.Plain, args=(seed,)) for seed in SEEDS]


def parameters(rrefs: list[rpc.RRef]) -> list[rpc.RRef]:
    return [rref.rpc_sync().parameter() for rref in rrefs]


class Unknown(optim.SGD):
    """Not on the list of the members."""


def test_dist_optim_exception() -> None:
    both = modules()
    optimizer = DistributedOptimizer(s.FailingOptimizer, parameters(both))
    with autograd.context() as context_id:
        loss = sum(rref.rpc_sync().forward(torch.rand(3, 3)).sum() for rref in both)
        assert isinstance(loss, torch.Tensor)
        autograd.backward(context_id, [loss])
        with pytest.raises(RemoteError, match="a step that fails"):
            optimizer.step(context_id)


def test_dist_optim_exception_on_constructor() -> None:
    with pytest.raises(InvalidArgumentError, match="an optimizer that cannot be made"):
        DistributedOptimizer(s.FailingAtOnce, parameters(modules()))
    with pytest.raises(NotAllowedError):
        DistributedOptimizer(Unknown, parameters(modules()), lr=0.1)
    with pytest.raises(InvalidArgumentError):
        DistributedOptimizer(optim.SGD, parameters(modules()), lr=-1.0)


@pytest.mark.parametrize(
    ("cls", "args", "kwargs"),
    [
        (optim.Adagrad, (), {"lr": 0.05}),
        (optim.Adam, (), {"lr": 1e-2, "amsgrad": True}),
        (optim.AdamW, (0.05,), {"betas": (0.9, 0.98)}),
        (optim.SGD, (0.05,), {}),
        (optim.SGD, (1e-2, 0.9), {"weight_decay": 0.01, "nesterov": True}),
        (optim.RMSprop, (), {"lr": 0.05}),
        (optim.Adadelta, (), {"rho": 0.95}),
        (optim.Adamax, (), {"lr": 0.05}),
        (optim.Rprop, (), {"lr": 0.05}),
    ],
)
def test_dist_optim(cls: type[optim.Optimizer], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    here = [s.Plain(seed) for seed in SEEDS]
    both = modules()
    reference = cls([plain.w for plain in here], *args, **kwargs)
    optimizer = DistributedOptimizer(cls, parameters(both), *args, **kwargs)
    x = torch.rand(3, 3)
    for _ in range(3):
        reference.zero_grad()
        here[1].forward(here[0].forward(x)).sum().backward()
        reference.step()
        with autograd.context() as context_id:
            loss = both[1].rpc_sync().forward(both[0].rpc_sync().forward(x)).sum()
            autograd.backward(context_id, [loss])
            optimizer.step(context_id)
    for rref, plain in zip(both, here, strict=True):
        torch.testing.assert_close(rref.rpc_sync().weight(), plain.weight())


def test_dist_optim_none_grads() -> None:
    both = modules()
    optimizer = DistributedOptimizer(optim.SGD, parameters(both), lr=0.1)
    before = both[1].rpc_sync().weight()
    with autograd.context() as context_id:
        autograd.backward(context_id, [both[0].rpc_sync().forward(torch.ones(3, 3)).sum()])
        optimizer.step(context_id)
    assert torch.equal(both[1].rpc_sync().weight(), before)
    assert not torch.equal(both[0].rpc_sync().weight(), s.Plain(SEEDS[0]).weight())


def test_local_and_remote_parameters_together() -> None:
    mine = torch.nn.Parameter(torch.ones(3, 3))
    (remote, _), local = modules(), s.Plain(SEEDS[0])
    optimizer = DistributedOptimizer(optim.SGD, [*parameters([remote]), rpc.RRef(mine)], lr=0.5)
    with autograd.context() as context_id:
        autograd.backward(context_id, [(remote.rpc_sync().forward(torch.eye(3)) * mine).sum()])
        optimizer.step(context_id)
    torch.testing.assert_close(mine.detach(), 1 - 0.5 * local.weight())
    torch.testing.assert_close(remote.rpc_sync().weight(), local.weight() - 0.5)


def test_gradients_are_clipped_over_all_processes() -> None:
    both, mine = modules(), torch.nn.Parameter(torch.ones(3, 3))
    here = [s.Plain(seed) for seed in SEEDS]
    everything = [*parameters(both), rpc.RRef(mine)]
    reference = [*(plain.w for plain in here), mine.detach().clone().requires_grad_()]
    loss = sum((plain.forward(torch.eye(3)) * reference[-1]).sum() for plain in here)
    assert isinstance(loss, torch.Tensor)
    gradients = torch.autograd.grad(loss, reference)
    expected = torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]))
    with autograd.context() as context_id:
        there = sum((rref.rpc_sync().forward(torch.eye(3)) * mine).sum() for rref in both)
        assert isinstance(there, torch.Tensor)
        autograd.backward(context_id, [there])
        torch.testing.assert_close(clip_grad_norm_(context_id, everything, 0.5), expected)
        torch.testing.assert_close(clip_grad_norm_(context_id, everything, 10.0), torch.tensor(0.5))


@pytest.mark.parametrize("kind", ["reference", "reference here", "tensor"])
@pytest.mark.parametrize("grouped", [False, True], ids=["parameter", "group"])
def test_a_single_parameter_is_taken_as_torch_takes_a_single_tensor(kind: str, grouped: bool) -> None:
    there, mine = modules()[0], torch.nn.Parameter(torch.ones(3, 3))
    single: Any = {
        "reference": lambda: there.rpc_sync().parameter(),
        "reference here": lambda: rpc.RRef(mine),
        "tensor": lambda: mine,
    }[kind]()
    with autograd.context() as context_id:
        autograd.backward(context_id, [(there.rpc_sync().forward(torch.eye(3)) * mine).sum()])
        assert clip_grad_norm_(context_id, single, 0.5) > 0.5
        torch.testing.assert_close(clip_grad_norm_(context_id, single, 10.0), torch.tensor(0.5))
        before = there.rpc_sync().weight() if kind == "reference" else mine.detach().clone()
        DistributedOptimizer(optim.SGD, [{"params": single}] if grouped else [single], lr=1.0).step(context_id)
    moved = (there.rpc_sync().weight() if kind == "reference" else mine.detach()) - before
    torch.testing.assert_close(torch.linalg.vector_norm(moved), torch.tensor(0.5))


def test_a_scaler_skips_in_all_processes_or_in_none() -> None:
    both, here = modules(), [s.Plain(seed) for seed in SEEDS]
    optimizer = DistributedOptimizer(optim.SGD, parameters(both), lr=0.1)
    reference = optim.SGD([plain.w for plain in here], lr=0.1)
    ours, theirs = (torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1) for _ in range(2))
    for number, factor in enumerate((1.0, float("inf"), 2.0)):
        inputs = [torch.eye(3), torch.eye(3) * factor]
        with autograd.context() as context_id:
            losses = [rref.rpc_sync().forward(x).sum() for rref, x in zip(both, inputs, strict=True)]
            autograd.backward(context_id, [ours.scale(loss) for loss in losses])
            if number == 2:
                optimizer.unscale_(context_id, ours)
            optimizer.step(context_id, ours)
            ours.update()
        reference.zero_grad()
        for plain, x in zip(here, inputs, strict=True):
            theirs.scale(plain.forward(x).sum()).backward()
        theirs.step(reference)
        theirs.update()
        assert ours.get_scale() == theirs.get_scale()
    for rref, plain in zip(both, here, strict=True):
        torch.testing.assert_close(rref.rpc_sync().weight(), plain.weight())
