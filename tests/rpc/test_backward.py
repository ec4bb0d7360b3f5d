"""Backwards over members, under the names of torch's own suite; local autograd is the reference."""

from __future__ import annotations

import pytest
import torch

from ps_wire.errors import ContextEndedError, RemoteError
from tests.custom_functions import FailingBackward
from tests.rpc import situations as s
from tests.rpc.passes import TO, Call, away, dense, later, leaf, nested, same_as_local, sync, where_it_is
from trainer_client import autograd, rpc


@pytest.mark.parametrize("call", [sync, later, away])
def test_backward_no_grad_on_tensor(call: Call) -> None:
    a = leaf()
    same_as_local(lambda call: call(TO, torch.sum, (call(TO, torch.add, (a, a.detach())),)), a, call=call)
    with autograd.context() as context_id, pytest.raises(RuntimeError, match="requires_grad not set on"):
        autograd.backward(context_id, [torch.ones(())])


def test_backward_no_grad_on_tensor_sparse() -> None:
    a = leaf(True)
    same_as_local(lambda call: call(TO, torch.add, (a, a.detach())), a)


def backward_simple(call: Call, to: str) -> None:
    a, b = leaf(), leaf()
    same_as_local(lambda call: call(to, torch.mul, (call(to, torch.add, (a, b)), b)), a, b, call=call)


@pytest.mark.parametrize("call", [sync, later, away])
def test_backward_simple(call: Call) -> None:
    backward_simple(call, TO)


@pytest.mark.parametrize("call", [sync, later, away])
def test_backward_simple_self(call: Call) -> None:
    backward_simple(call, "worker0")


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
        result = rpc.rpc_sync(TO, torch.add, args=(FailingBackward.apply(a), a))
        with pytest.raises(ArithmeticError, match="this backward is broken"):
            autograd.backward(context_id, [result.sum()])


def test_backward_python_udf_error() -> None:
    a = leaf()
    with autograd.context() as context_id:
        result = rpc.rpc_sync(TO, s.fails_in_backward, args=(a,))
        with pytest.raises(RemoteError, match="this backward is broken"):
            autograd.backward(context_id, [result.sum()])


def test_multiple_backward_with_errors() -> None:
    a = leaf()
    with autograd.context() as context_id:
        good, bad = rpc.rpc_sync(TO, torch.add, args=(a, a)), rpc.rpc_sync(TO, s.fails_in_backward, args=(a,))
        for _ in range(5):
            with pytest.raises(ArithmeticError, match="this backward is broken"):
                autograd.backward(context_id, [bad.sum()], retain_graph=True)
        assert autograd.get_gradients(context_id) == {}
        autograd.backward(context_id, [good.sum()])
        assert torch.equal(autograd.get_gradients(context_id)[a], torch.full((3, 3), 2.0))


def test_backward_without_context() -> None:
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 100"):
        autograd.backward(100, [leaf().sum()])
    with pytest.raises(RuntimeError, match="Could not find autograd context with id: 100"):
        autograd.backward(100, [torch.ones(())])


def test_backward_without_rpc() -> None:
    a = leaf()
    with autograd.context() as context_id:
        autograd.backward(context_id, [(a * 3).sum()])
        assert torch.equal(autograd.get_gradients(context_id)[a], torch.full((3, 3), 3.0))


def test_backward_invalid_args() -> None:
    a = leaf()
    with autograd.context() as context_id:
        with pytest.raises(TypeError, match="incompatible function arguments"):
            autograd.backward(context_id, None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be the number"):
            autograd.backward(None, None)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="No tensors provided for gradient computation"):
            autograd.backward(context_id, [])
        with pytest.raises(RuntimeError, match="is not a scalar, all roots need to be scalar"):
            autograd.backward(context_id, [a])
        with pytest.raises(RuntimeError, match="requires_grad not set on"):
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
    a, b = leaf(True), leaf(True)
    same_as_local(lambda call: call(TO, s.my_add, (a, b)), a, b)


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
