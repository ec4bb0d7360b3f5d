"""Owners that call owners inside a pass: gradients reach through, and are those of one process."""

from __future__ import annotations

import threading
import time

import torch
from torch import nn

from tests.rpc import situations as s
from tests.rpc.passes import leaf
from trainer_client import autograd, rpc
from trainer_client.nn import RemoteModule


def local(module: RemoteModule) -> list[torch.Tensor]:
    return [rref.to_here().requires_grad_() for rref in module.remote_parameters()]


def gradients_there(context_id: int, *modules: RemoteModule) -> list[torch.Tensor]:
    found = autograd.context_of(context_id).get_gradients().wait()
    by_ref = {handle.ref: gradient for handle, gradient in found.items() if not isinstance(handle, torch.Tensor)}
    return [by_ref[rref.handle().ref] for module in modules for rref in module.remote_parameters()]


def test_gradients_reach_through_three_owners() -> None:
    third = RemoteModule("worker3", s.Chain)
    second = RemoteModule("worker2", s.Chain, (third.get_module_rref(),))
    first = RemoteModule("worker1", s.Chain, (second.get_module_rref(),))
    x = leaf(False, 5, 2)
    with autograd.context() as context_id:
        y = first.forward(x)
        autograd.backward(context_id, [(y**2).sum()])
        mine = autograd.get_gradients(context_id)[x]
        theirs = gradients_there(context_id, first, second, third)
    layers = [*zip(*[iter([p for module in (first, second, third) for p in local(module)])] * 2, strict=True)]
    z = x
    for weight, bias in layers:
        z = torch.tanh(nn.functional.linear(z, weight, bias))
    torch.testing.assert_close(y.detach(), z.detach())
    expected = torch.autograd.grad((z**2).sum(), [x, *(p for layer in layers for p in layer)])
    torch.testing.assert_close([mine, *theirs], list(expected))


def test_gradients_of_a_diamond() -> None:
    bottom = RemoteModule("worker3", s.Scale, (1.5,))
    left = RemoteModule("worker1", s.Chain, (bottom.get_module_rref(),))
    right = RemoteModule("worker2", s.Chain, (bottom.get_module_rref(),))
    top = RemoteModule("worker3", s.Fork, (left.get_module_rref(), right.get_module_rref()))
    x = leaf(False, 4, 2)
    with autograd.context() as context_id:
        y = top.forward(x)
        autograd.backward(context_id, [y.sum()])
        mine = autograd.get_gradients(context_id)[x]
        theirs = gradients_there(context_id, top, left, right, bottom)
    (scale,), (lw, lb), (rw, rb), (w,) = map(local, (top, left, right, bottom))
    inner = x * scale
    expected = (torch.tanh(nn.functional.linear(inner, lw, lb)) * w) * (
        torch.tanh(nn.functional.linear(inner, rw, rb)) * w
    )
    torch.testing.assert_close(y.detach(), expected.detach())
    gradients = torch.autograd.grad(expected.sum(), [x, scale, lw, lb, rw, rb, w])
    torch.testing.assert_close([mine, *theirs], list(gradients))


def test_an_input_without_a_gradient_still_brings_one_to_the_inner_owner() -> None:
    table = RemoteModule("worker2", s.Table)
    lookup = RemoteModule("worker1", s.Lookup, (table.get_module_rref(),))
    with autograd.context() as context_id:
        autograd.backward(context_id, [lookup.forward(torch.tensor([1, 1, 3])).sum()])
        (gradient,) = gradients_there(context_id, table)
    weight, _ = local(lookup)
    expected = torch.zeros(10, 3)
    expected[1], expected[3] = 2 * weight.detach()[0], weight.detach()[0]
    torch.testing.assert_close(gradient, expected)


def test_passes_through_owners_do_not_mix() -> None:
    bottom = RemoteModule("worker2", s.Scale, (2.0,))
    top = RemoteModule("worker1", s.Scale, (3.0,))
    failures: list[BaseException] = []

    def work(factor: float) -> None:
        try:
            x = torch.full((2,), factor, requires_grad=True)
            for _ in range(5):
                with autograd.context() as context_id:
                    y = top.forward(x, bottom.get_module_rref())
                    autograd.backward(context_id, [y.sum()])
                    assert autograd.get_gradients(context_id)[x].tolist() == [5.0, -5.0]
                    (gradient,) = gradients_there(context_id, bottom)
                    assert gradient.tolist() == [factor, factor]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_nothing_of_the_passes_is_left() -> None:
    end = time.monotonic() + 20
    for to in ("worker0", "worker1", "worker2", "worker3"):
        while rpc.rpc_sync(to, s.seen_contexts):
            assert time.monotonic() < end, f"{to} still keeps passes"
