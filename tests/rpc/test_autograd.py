"""Passes over members, under the names of torch's own suite; local autograd is the reference."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tests.rpc import situations as s
from tests.rpc.passes import TO, Call, away, leaf, nested, same_as_local, sync
from trainer_client import autograd, rpc


def test_autograd_context() -> None:
    with autograd.context() as one:
        pass
    with autograd.context() as other:
        assert autograd.get_gradients(other) == {} and one != other
    for gone in (one, other, 17, -1):
        with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {gone}"):
            autograd.get_gradients(gone)


def test_nested_context() -> None:
    with (
        autograd.context() as context_id,
        pytest.raises(RuntimeError, match="contexts do not nest"),
        autograd.context(),
    ):
        pass
    with autograd.context() as again:
        assert again != context_id


def graph_for_builtin_call(call: Call, sparse: bool) -> None:
    a, b = leaf(sparse), leaf(sparse)
    with autograd.context():
        result = call(TO, torch.add, (a, b))
        assert result.requires_grad and type(result.grad_fn).__name__ == "RecvRpcBackward"
    same_as_local(lambda call: call(TO, torch.add, (a, b)), a, b, call=call)


def test_graph_for_builtin_call() -> None:
    graph_for_builtin_call(sync, False)


def test_graph_for_builtin_call_sparse() -> None:
    graph_for_builtin_call(sync, True)


def test_graph_for_builtin_remote_call() -> None:
    graph_for_builtin_call(away, False)


def test_graph_for_builtin_remote_call_sparse() -> None:
    graph_for_builtin_call(away, True)


def graph_for_python_call(call: Call, sparse: bool) -> None:
    a, b = leaf(sparse), leaf(sparse)
    same_as_local(lambda call: call(TO, s.my_add, (a, b)), a, b, call=call)


def test_graph_for_python_call() -> None:
    graph_for_python_call(sync, False)


def test_graph_for_python_call_sparse() -> None:
    graph_for_python_call(sync, True)


def test_graph_for_python_remote_call() -> None:
    graph_for_python_call(away, False)


def test_graph_for_python_remote_call_sparse() -> None:
    graph_for_python_call(away, True)


def test_graph_for_py_nested_call() -> None:
    nested(sync, False)


def test_graph_for_py_nested_call_sparse() -> None:
    nested(sync, True)


def test_graph_for_py_nested_remote_call() -> None:
    nested(away, False)


def test_graph_for_py_nested_remote_call_sparse() -> None:
    nested(away, True)


def test_graph_for_py_nested_call_itself() -> None:
    nested(sync, False, "worker0")


def test_graph_for_py_nested_call_itself_sparse() -> None:
    nested(sync, True, "worker0")


def test_graph_for_py_nested_remote_call_itself() -> None:
    nested(away, False, "worker0")


def test_graph_for_py_nested_remote_call_itself_sparse() -> None:
    nested(away, True, "worker0")


def no_graph_with_tensors_not_require_grad(call: Call, sparse: bool) -> None:
    a = leaf(sparse).detach()
    with autograd.context() as context_id:
        assert not call(TO, torch.add, (a, a)).requires_grad
        assert autograd.get_gradients(context_id) == {}


def test_no_graph_with_tensors_not_require_grad() -> None:
    no_graph_with_tensors_not_require_grad(sync, False)


def test_no_graph_with_tensors_not_require_grad_sparse() -> None:
    no_graph_with_tensors_not_require_grad(sync, True)


def test_no_graph_with_tensors_not_require_grad_remote() -> None:
    no_graph_with_tensors_not_require_grad(away, False)


def test_no_graph_with_tensors_not_require_grad_remote_sparse() -> None:
    no_graph_with_tensors_not_require_grad(away, True)


def grad_only_on_return_value(call: Call) -> None:
    with autograd.context() as context_id:
        result = call(TO, s.leaf_of_this_process, ())
        autograd.backward(context_id, [result.sum()])
        assert torch.equal(rpc.rpc_sync(TO, s.gradient_of_leaf, args=(context_id,)), torch.ones(3, 3))


def test_grad_only_on_return_value() -> None:
    grad_only_on_return_value(sync)


def test_grad_only_on_return_value_remote() -> None:
    grad_only_on_return_value(away)


def complex_args(call: Call, sparse: bool) -> None:
    tensors = [leaf(sparse).detach().requires_grad_(n % 2 == 0) for n in range(5)]
    same_as_local(lambda call: call(TO, s.complex_args, (tensors,)), *tensors[::2], call=call)


def test_rpc_complex_args() -> None:
    complex_args(sync, False)


def test_rpc_complex_args_sparse() -> None:
    complex_args(sync, True)


def test_remote_complex_args() -> None:
    complex_args(away, False)


def test_remote_complex_args_sparse() -> None:
    complex_args(away, True)


def context_cleanup(function: Any, args: tuple[Any, ...], *others: str) -> None:
    with autograd.context() as context_id:
        rpc.rpc_sync(TO, function, args=args)
        assert all(rpc.rpc_sync(to, s.knows_context, args=(context_id,)) for to in (TO, *others))
    end = time.monotonic() + 20
    for to in (TO, *others):
        while rpc.rpc_sync(to, s.knows_context, args=(context_id,)):
            assert time.monotonic() < end, f"{to} still has it"


def test_context_cleanup_tensor_with_grad() -> None:
    context_cleanup(torch.add, (leaf(False), leaf(False)))


def test_context_cleanup_tensor_with_grad_sparse() -> None:
    context_cleanup(torch.add, (leaf(True), leaf(True)))


def test_context_cleanup_tensor_no_grad() -> None:
    context_cleanup(torch.add, (torch.ones(3), torch.ones(3)))


def test_context_cleanup_tensor_no_grad_sparse() -> None:
    context_cleanup(torch.add, (leaf(True).detach(), leaf(True).detach()))


def test_context_cleanup_no_tensors() -> None:
    context_cleanup(s.my_add, (1, 1))


def test_context_cleanup_nested_rpc() -> None:
    context_cleanup(s.nested_add, ("worker2", leaf(), leaf()), "worker2")


def test_context_cleanup_nested_rpc_sparse() -> None:
    context_cleanup(s.nested_add, ("worker2", leaf(True), leaf(True)), "worker2")


def test_worker_ids_recorded() -> None:
    with autograd.context() as context_id:
        for to in ("worker1", "worker2"):
            rpc.rpc_sync(to, torch.add, args=(torch.ones(2), 1))
        sessions = autograd.context_of(context_id).sessions
        assert {session.owner for session in sessions} == {"worker1", "worker2"}


def test_error_in_context() -> None:
    with autograd.context(), pytest.raises(RuntimeError, match="cannot be multiplied"):
        rpc.rpc_sync(TO, torch.matmul, args=(torch.rand(3, 3), torch.rand(6, 6)))
