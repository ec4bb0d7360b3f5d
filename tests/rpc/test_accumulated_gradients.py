"""Gradients of several calls and backwards, under the names of torch's own suite."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from tests.rpc import situations as s
from tests.rpc.passes import TO, dense, leaf, same_as_local
from trainer_client import autograd, rpc
from trainer_client.nn import RemoteModule


def test_mixed_requires_grad() -> None:
    a, b = leaf(), leaf().detach()
    same_as_local(lambda call: call(TO, torch.mul, (a, b)), a)


def test_mixed_requires_grad_sparse() -> None:
    a, b = leaf(True), leaf(True).detach()
    same_as_local(lambda call: call(TO, torch.add, (a, b)), a)


def test_async_dist_autograd() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            a, b = leaf(), leaf()
            same_as_local(lambda call: call(TO, torch.mul, (call("worker2", torch.add, (a, b)), b)), a, b)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_backward_accumulate_grads() -> None:
    a, b = leaf(), leaf()
    with autograd.context() as context_id:
        result = rpc.rpc_sync(TO, torch.matmul, args=(a, b))
        autograd.backward(context_id, [result.sum()], retain_graph=True)
        autograd.backward(context_id, [result.sum()])
        found = autograd.get_gradients(context_id)
    expected = torch.autograd.grad(2 * torch.matmul(a, b).sum(), (a, b))
    torch.testing.assert_close((found[a], found[b]), expected)


def test_nested_backward_accumulate_grads() -> None:
    a, b = leaf(), leaf()
    with autograd.context() as context_id:
        result = rpc.rpc_sync("worker1", s.nested_add, args=("worker2", a, b))
        for times in range(3):
            autograd.backward(context_id, [result.sum()], retain_graph=times < 2)
        assert torch.equal(autograd.get_gradients(context_id)[a], torch.full((3, 3), 3.0))


def test_nested_backward_accumulate_grads_sparse() -> None:
    a, b = leaf(True), leaf(True)
    with autograd.context() as context_id:
        result = rpc.rpc_sync("worker1", s.nested_add, args=("worker2", a, b))
        for times in range(3):
            autograd.backward(context_id, [dense(result).sum()], retain_graph=times < 2)
        assert dense(autograd.get_gradients(context_id)[a]).max() == 3.0


def multiple_backward(sparse: bool) -> None:
    a, b = leaf(sparse), leaf(sparse)
    with autograd.context() as context_id:
        result = rpc.rpc_sync(TO, torch.add, args=(a, b))
        for _ in range(50):
            autograd.backward(context_id, [dense(result).sum()], retain_graph=True)
        assert dense(autograd.get_gradients(context_id)[a]).max() == 50.0


def test_multiple_backward() -> None:
    multiple_backward(False)


def test_multiple_backward_sparse() -> None:
    multiple_backward(True)


def test_backward_verify_hooks() -> None:
    a, b = leaf(), leaf()
    a.register_hook(lambda gradient: gradient * 2)
    same_as_local(lambda call: call(TO, torch.matmul, (a, b)), a, b)


def test_post_hooks() -> None:
    a, seen = leaf(), []
    b = a * 2
    assert b.grad_fn is not None
    handle = b.grad_fn.register_hook(lambda inputs, outputs: seen.append(1))
    with autograd.context() as context_id:
        autograd.backward(context_id, [rpc.rpc_sync(TO, torch.add, args=(b, b)).sum()])
    handle.remove()
    assert seen == [1]


def test_thread_local_context_id() -> None:
    a, b = leaf(), leaf()
    with autograd.context() as context_id:
        first = rpc.rpc_async(TO, torch.mul, args=(a, b))
        result = first.then(lambda done: rpc.rpc_sync("worker2", torch.mul, args=(done.wait(), b)))
        autograd.backward(context_id, [result.wait().sum()])
        torch.testing.assert_close(autograd.get_gradients(context_id)[a], b.detach() ** 2)


def test_embedding_bag_with_no_grad_tensors() -> None:
    module = RemoteModule(
        TO, nn.EmbeddingBag, kwargs={"num_embeddings": 10, "embedding_dim": 3, "mode": "sum", "sparse": True}
    )
    with autograd.context() as context_id:
        result = module.forward(torch.tensor([1, 2, 4]), torch.tensor([0, 2]))
        autograd.backward(context_id, [result.sum()])
        (gradient,) = rpc.rpc_sync(TO, s.gradients_of_hosted, args=(context_id,))
    assert gradient.is_sparse and gradient.to_dense().sum(1).tolist() == [0, 3, 3, 0, 3, 0, 0, 0, 0, 0]


def test_owner_rref_backward() -> None:
    x = leaf()
    rref = rpc.RRef((x * 2).sum())
    rref.backward()
    assert torch.equal(x.grad if x.grad is not None else torch.zeros(()), torch.full((3, 3), 2.0))
    with autograd.context() as context_id:
        rpc.RRef((x * 3).sum()).backward(context_id)
        assert torch.equal(autograd.get_gradients(context_id)[x], torch.full((3, 3), 3.0))
    with pytest.raises(RuntimeError, match=r"RRef should contain a tensor for .backward\(\), and this is a str"):
        rpc.RRef("text").backward()


def test_user_rref_backward() -> None:
    x = leaf()
    with autograd.context() as context_id:
        rref = rpc.remote(TO, torch.sum, args=(x,))
        rref.backward(context_id, retain_graph=True)
        rref.backward(context_id)
        assert torch.equal(autograd.get_gradients(context_id)[x], torch.full((3, 3), 2.0))
        with pytest.raises(RuntimeError, match="User RRefs require 'dist_autograd_ctx_id' to be specified"):
            rref.backward()
