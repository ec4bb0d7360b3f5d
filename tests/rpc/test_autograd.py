"""Passes over members, under the names of torch's own suite; local autograd is the reference."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ps_wire.errors import ContextEndedError, RemoteError
from tests.rpc import situations as s
from trainer_client import autograd, rpc
from trainer_client.nn import RemoteModule

TO = "worker1"

Call = Callable[..., Any]


def sync(to: str, function: Any, args: tuple[Any, ...]) -> Any:
    return rpc.rpc_sync(to, function, args=args)


def away(to: str, function: Any, args: tuple[Any, ...]) -> Any:
    return rpc.remote(to, function, args=args).to_here()


def later(to: str, function: Any, args: tuple[Any, ...]) -> Any:
    return rpc.rpc_async(to, function, args=args).wait()


def leaf(sparse: bool = False, *shape: int) -> torch.Tensor:
    x = torch.rand(*(shape or (3, 3)))
    return (x.to_sparse() if sparse else x).requires_grad_()


def where_it_is(x: torch.Tensor, value: float) -> torch.Tensor:
    """A gradient that is the same everywhere; that of a sparse tensor only where it has entries."""
    everywhere = torch.full(x.shape, value)
    return torch.where(x.detach().to_dense() == 0, 0.0, everywhere) if x.is_sparse else everywhere


def dense(x: torch.Tensor) -> torch.Tensor:
    return x.to_dense() if x.is_sparse else x


def same_as_local(compute: Callable[[Call], torch.Tensor], *leaves: torch.Tensor, call: Call = sync) -> None:
    """The same computation on members and here, with the same gradients."""
    with autograd.context() as context_id:
        autograd.backward(context_id, [dense(compute(call)).sum()])
        found = autograd.get_gradients(context_id)
    expected = dense(compute(lambda to, function, args: function(*args)))
    gradients = torch.autograd.grad(expected.sum(), leaves, allow_unused=True)
    for each, gradient in zip(leaves, gradients, strict=True):
        assert (gradient is None) == (each not in found)
        if gradient is not None:
            torch.testing.assert_close(dense(found[each]), dense(gradient))
        assert each.grad is None


def test_autograd_context() -> None:
    with autograd.context() as one:
        pass
    with autograd.context() as other:
        assert autograd.get_gradients(other) == {} and one != other
    for gone in (one, other, 17, -1):
        with pytest.raises(RuntimeError, match=r"could not find an open context|is not known in this|is not the id"):
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


@pytest.mark.parametrize("call", [sync, away])
@pytest.mark.parametrize("sparse", [False, True])
def test_graph_for_builtin_call(call: Call, sparse: bool) -> None:
    a, b = leaf(sparse), leaf(sparse)
    with autograd.context():
        result = call(TO, torch.add, (a, b))
        assert result.requires_grad and type(result.grad_fn).__name__ == "_ReceiveBackward"
    same_as_local(lambda call: call(TO, torch.add, (a, b)), a, b, call=call)


def test_graph_for_builtin_call_sparse() -> None:
    test_graph_for_builtin_call(sync, True)


def test_graph_for_builtin_remote_call() -> None:
    test_graph_for_builtin_call(away, False)


def test_graph_for_builtin_remote_call_sparse() -> None:
    test_graph_for_builtin_call(away, True)


@pytest.mark.parametrize("call", [sync, away])
def test_graph_for_python_call(call: Call) -> None:
    a, b = leaf(), leaf()
    same_as_local(lambda call: call(TO, s.my_add, (a, b)), a, b, call=call)


def test_graph_for_python_call_sparse() -> None:
    a, b = leaf(True), leaf(True)
    same_as_local(lambda call: call(TO, s.my_add, (a, b)), a, b)


def test_graph_for_python_remote_call() -> None:
    test_graph_for_python_call(away)


def test_graph_for_python_remote_call_sparse() -> None:
    a, b = leaf(True), leaf(True)
    same_as_local(lambda call: call(TO, s.my_add, (a, b)), a, b, call=away)


def nested(call: Call, sparse: bool, to: str = "worker2") -> None:
    a, b = leaf(sparse), leaf(sparse)
    with autograd.context() as context_id:
        autograd.backward(context_id, [dense(call(TO, s.nested_add, (to, a, b))).sum()])
        found = autograd.get_gradients(context_id)
    for each in (a, b):
        torch.testing.assert_close(dense(found[each]), where_it_is(each, 1.0))


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


@pytest.mark.parametrize("call", [sync, away])
@pytest.mark.parametrize("sparse", [False, True])
def test_no_graph_with_tensors_not_require_grad(call: Call, sparse: bool) -> None:
    a = leaf(sparse).detach()
    with autograd.context() as context_id:
        assert not call(TO, torch.add, (a, a)).requires_grad
        assert autograd.get_gradients(context_id) == {}


def test_no_graph_with_tensors_not_require_grad_sparse() -> None:
    test_no_graph_with_tensors_not_require_grad(sync, True)


def test_no_graph_with_tensors_not_require_grad_remote() -> None:
    test_no_graph_with_tensors_not_require_grad(away, False)


def test_no_graph_with_tensors_not_require_grad_remote_sparse() -> None:
    test_no_graph_with_tensors_not_require_grad(away, True)


@pytest.mark.parametrize("call", [sync, away])
def test_grad_only_on_return_value(call: Call) -> None:
    with autograd.context() as context_id:
        result = call(TO, s.leaf_of_this_process, ())
        autograd.backward(context_id, [result.sum()])
        assert torch.equal(rpc.rpc_sync(TO, s.gradient_of_leaf, args=(context_id,)), torch.ones(3, 3))


def test_grad_only_on_return_value_remote() -> None:
    test_grad_only_on_return_value(away)


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


@pytest.mark.parametrize("sparse", [False, True])
def test_context_cleanup_tensor_with_grad(sparse: bool) -> None:
    context_cleanup(torch.add, (leaf(sparse), leaf(sparse)))


def test_context_cleanup_tensor_with_grad_sparse() -> None:
    test_context_cleanup_tensor_with_grad(True)


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


@pytest.mark.parametrize("call", [sync, later, away])
def test_backward_no_grad_on_tensor(call: Call) -> None:
    a = leaf()
    same_as_local(lambda call: call(TO, torch.sum, (call(TO, torch.add, (a, a.detach())),)), a, call=call)
    with autograd.context() as context_id, pytest.raises(RuntimeError, match="does not require grad"):
        autograd.backward(context_id, [torch.ones(())])


def test_backward_no_grad_on_tensor_sparse() -> None:
    a = leaf(True)
    same_as_local(lambda call: call(TO, torch.add, (a, a.detach())), a)


@pytest.mark.parametrize("call", [sync, later, away])
@pytest.mark.parametrize("to", ["worker1", "worker0"])
def test_backward_simple(call: Call, to: str) -> None:
    a, b = leaf(), leaf()
    same_as_local(lambda call: call(to, torch.mul, (call(to, torch.add, (a, b)), b)), a, b, call=call)


def test_backward_simple_self() -> None:
    test_backward_simple(sync, "worker0")


def test_backward_simple_sparse() -> None:
    a, b = leaf(True), leaf(True)
    same_as_local(lambda call: call(TO, torch.add, (a, b)), a, b)


def test_backward_simple_self_sparse() -> None:
    a, b = leaf(True), leaf(True)
    same_as_local(lambda call: call("worker0", torch.add, (a, b)), a, b)


def backward_rref(owners: list[str], sparse: bool = False) -> None:
    a, b = leaf(sparse), leaf(sparse)
    with autograd.context() as context_id:
        rrefs = [rpc.remote(to, torch.add, args=(a, b)) for to in owners]
        loss = torch.stack([dense(rref.to_here()).sum() for rref in rrefs]).sum()
        # What stays is used again where it is, and by a third member.
        again = rpc.rpc_sync(owners[0], s.add_values, args=(rrefs[0], rrefs[0]))
        away = rpc.rpc_sync("worker3", s.add_rrefs, args=(rrefs[-1], 0.0 if not sparse else rrefs[-1]))
        autograd.backward(context_id, [loss + dense(again).sum() + dense(away).sum()])
        found = autograd.get_gradients(context_id)
    times = len(owners) + 2 + (2 if sparse else 1)
    for each in (a, b):
        torch.testing.assert_close(dense(found[each]), where_it_is(each, float(times)))


def test_backward_rref() -> None:
    backward_rref([TO])


def test_backward_rref_sparse() -> None:
    backward_rref([TO], True)


def test_backward_rref_multi() -> None:
    backward_rref(["worker1", "worker2", "worker0"])


def test_backward_rref_multi_sparse() -> None:
    backward_rref(["worker1", "worker2"], True)


def backward_rref_nested(sparse: bool) -> None:
    a, b = leaf(sparse), leaf(sparse)
    with autograd.context() as context_id:
        # A member has a third one make a value, and gives the reference back.
        rref = rpc.rpc_sync("worker1", s.remote_rref, args=("worker2", a, b))
        autograd.backward(context_id, [dense(rref.to_here()).sum()])
        found = autograd.get_gradients(context_id)
    assert all(dense(found[each]).sum() > 0 for each in (a, b))
    if not sparse:
        assert torch.equal(found[a], torch.ones(3, 3)) and torch.equal(found[b], torch.ones(3, 3))


def test_backward_rref_nested() -> None:
    backward_rref_nested(False)


def test_backward_rref_nested_sparse() -> None:
    backward_rref_nested(True)


def trainer_ps(sparse: bool) -> None:
    x = rpc.RRef(leaf(sparse).detach())
    futures = [rpc.rpc_async(to, s.ps_trainer, args=(x, "worker0")) for to in ("worker1", "worker2", "worker3")]
    for gradient in rpc.wait_all(futures):
        assert torch.equal(dense(gradient), torch.full((3, 3), 2.0))


def test_trainer_ps() -> None:
    trainer_ps(False)


def test_trainer_ps_sparse() -> None:
    trainer_ps(True)


@pytest.mark.parametrize("rounds", [3])
def test_backward_multiple_round_trips(rounds: int) -> None:
    leaves = [leaf() for _ in range(rounds)]

    def compute(call: Call) -> torch.Tensor:
        x = leaves[0]
        for n, other in enumerate(leaves):
            x = call(f"worker{n % 3 + 1}", torch.mul, (call(TO, torch.add, (x, other)), other)) + x
        return x

    for call in (sync, later, away):
        same_as_local(compute, *leaves, call=call)


def test_backward_multiple_round_trips_sparse() -> None:
    a = leaf(True)
    same_as_local(lambda call: call(TO, torch.add, (call("worker2", torch.add, (a, a)), a)), a)


def test_backward_different_tensor_dims() -> None:
    a, b, c = leaf(False, 4, 6), leaf(False, 6), leaf(False, 6, 3)
    same_as_local(lambda call: call(TO, torch.matmul, (call(TO, torch.mul, (a, b)), c)), a, b, c)


def test_backward_unused_tensors() -> None:
    a, b = leaf(), leaf()
    same_as_local(lambda call: call(TO, s.unused_second, (a, b)), a)


def test_backward_multiple_output_tensors() -> None:
    a = leaf(False, 6, 2)
    same_as_local(lambda call: call(TO, torch.matmul, (call(TO, s.split_in_three, (a,))[1], torch.ones(2, 3))), a)


def test_backward_unused_send_function() -> None:
    a, b = leaf(), leaf()
    with autograd.context() as context_id:
        rpc.rpc_sync(TO, torch.mul, args=(a, b))  # its result is not used
        autograd.backward(context_id, [rpc.rpc_sync(TO, torch.mul, args=(a, a)).sum()])
        assert list(autograd.get_gradients(context_id)) == [a]


def test_backward_autograd_engine_error() -> None:
    a = leaf()
    with autograd.context() as context_id:
        result = rpc.rpc_sync(TO, torch.add, args=(s.Failing.apply(a), a))
        with pytest.raises(RuntimeError, match="a backward that fails on purpose"):
            autograd.backward(context_id, [result.sum()])


def test_backward_python_udf_error() -> None:
    a = leaf()
    with autograd.context() as context_id:
        result = rpc.rpc_sync(TO, s.fails_in_backward, args=(a,))
        with pytest.raises(RemoteError, match="a backward that fails on purpose"):
            autograd.backward(context_id, [result.sum()])


def test_multiple_backward_with_errors() -> None:
    a = leaf()
    with autograd.context() as context_id:
        good, bad = rpc.rpc_sync(TO, torch.add, args=(a, a)), rpc.rpc_sync(TO, s.fails_in_backward, args=(a,))
        for _ in range(5):
            with pytest.raises(RuntimeError, match="on purpose"):
                autograd.backward(context_id, [bad.sum()], retain_graph=True)
        assert autograd.get_gradients(context_id) == {}
        autograd.backward(context_id, [good.sum()])
        assert torch.equal(autograd.get_gradients(context_id)[a], torch.full((3, 3), 2.0))


def test_backward_without_context() -> None:
    with pytest.raises(RuntimeError, match="could not find an open context with the id 100"):
        autograd.backward(100, [leaf().sum()])


def test_backward_without_rpc() -> None:
    a = leaf()
    with autograd.context() as context_id:
        autograd.backward(context_id, [(a * 3).sum()])
        assert torch.equal(autograd.get_gradients(context_id)[a], torch.full((3, 3), 3.0))


def test_backward_invalid_args() -> None:
    a = leaf()
    with autograd.context() as context_id:
        with pytest.raises(TypeError):
            autograd.backward(context_id, None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be the number"):
            autograd.backward(None, None)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="got no tensors"):
            autograd.backward(context_id, [])
        with pytest.raises(RuntimeError, match="losses with one element"):
            autograd.backward(context_id, [a])
        with pytest.raises(RuntimeError, match="does not require grad"):
            autograd.backward(context_id, [a.detach().sum()])


def test_backward_multiple_roots() -> None:
    a, b = leaf(), leaf()
    with autograd.context() as context_id:
        roots = [rpc.rpc_sync(to, torch.mul, args=(a, b)).sum() for to in ("worker1", "worker2", "worker1")]
        autograd.backward(context_id, roots)
        torch.testing.assert_close(autograd.get_gradients(context_id)[a], 3 * b.detach())


def test_backward_different_dtypes() -> None:
    a, b = (
        torch.rand(3, 3, dtype=torch.float32).requires_grad_(),
        torch.rand(3, 3, dtype=torch.float64).requires_grad_(),
    )
    same_as_local(lambda call: call(TO, torch.add, (a, b)), a, b)


def test_backward_different_dtypes_sparse() -> None:
    a, b = leaf(True), leaf(True).detach().to(torch.float64).requires_grad_()
    same_as_local(lambda call: call(TO, torch.add, (a, b)), a, b)


def test_backward_simple_python_udf() -> None:
    a, b = leaf(), leaf()
    for call in (sync, later, away):
        same_as_local(lambda call: call(TO, s.my_add, (a, b)), a, b, call=call)


def test_backward_simple_python_udf_sparse() -> None:
    test_graph_for_python_call_sparse()


def test_backward_complex_python_udf() -> None:
    a, b = leaf(), leaf()
    same_as_local(lambda call: call(TO, s.in_container, ([a, b, a], {"b": b}))["sum"], a, b)


def test_backwards_nested_python_udf() -> None:
    a, b = leaf(), leaf()
    with autograd.context() as context_id:
        result = rpc.rpc_sync("worker1", s.my_mul_nested, args=("worker2", "worker1", a, b, 3))
        autograd.backward(context_id, [result.sum()])
        found = autograd.get_gradients(context_id)
    torch.testing.assert_close(found[a], b.detach())
    torch.testing.assert_close(found[b], a.detach() + 3)


def test_backwards_nested_python_udf_sparse() -> None:
    nested(sync, True)


def test_clean_context_during_backward() -> None:
    a = leaf()
    with autograd.context() as context_id:
        result = rpc.rpc_sync(TO, torch.mul, args=(a, a))
    with pytest.raises((RuntimeError, ContextEndedError)):
        autograd.backward(context_id, [result.sum()])
    assert rpc.rpc_sync(TO, s.my_add, args=(1, 2)) == 3


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
    with pytest.raises(RuntimeError, match=r"backward\(\) needs a tensor, and this is a str"):
        rpc.RRef("text").backward()


def test_user_rref_backward() -> None:
    x = leaf()
    with autograd.context() as context_id:
        rref = rpc.remote(TO, torch.sum, args=(x,))
        rref.backward(context_id, retain_graph=True)
        rref.backward(context_id)
        assert torch.equal(autograd.get_gradients(context_id)[x], torch.full((3, 3), 2.0))
        with pytest.raises(RuntimeError, match="needs a context id"):
            rref.backward()
