"""Every error of `trainer_client.rpc`, `.autograd` and `.optim` is a `RuntimeError`, as in torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_wire.errors import DeadlineExceededError, InvalidArgumentError, RemoteError
from tests.custom_functions import FailingBackward
from tests.forking.process import Forking
from tests.rpc import raising
from tests.rpc import situations as s
from tests.rpc.passes import TO, leaf
from tests.rpc.test_faults import mortal
from trainer_client import autograd, rpc
from trainer_client.optim import DistributedOptimizer

Way = Callable[..., Any]

WAYS: list[Way] = [
    rpc.rpc_sync,
    lambda *args, **options: rpc.rpc_async(*args, **options).wait(),
    lambda *args, **options: rpc.remote(*args, **options).to_here(),
]
ways = pytest.mark.parametrize("way", WAYS, ids=["sync", "async", "remote"])


@ways
def test_a_time_out_is_a_runtime_error_with_the_words_of_torch(way: Way, request: pytest.FixtureRequest) -> None:
    event = request.node.name
    with pytest.raises(RuntimeError, match="RPC ran for more than") as raised:
        way(TO, s.wait_for, args=(event,), timeout=0.05)
    rpc.rpc_sync(TO, s.let_go, args=(event,))
    assert isinstance(raised.value, DeadlineExceededError) and isinstance(raised.value, TimeoutError)


def test_a_dead_peer_is_a_runtime_error(forking: Forking) -> None:
    with mortal(forking, "for_errors") as (process, rref):
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        for use in (lambda: rpc.rpc_sync("for_errors", s.nothing, timeout=0.2), rref.rpc_sync(timeout=0.2).value):
            with pytest.raises(RuntimeError):
                use()


@ways
@pytest.mark.parametrize("name", ["ValueError", "KeyError", "TypeError", "ZeroDivisionError", "RecursionError"])
def test_a_builtin_exception_keeps_its_type_and_is_a_runtime_error(way: Way, name: str) -> None:
    with pytest.raises(RuntimeError, match="expected") as raised:
        way(TO, raising.raises_builtin, args=(name,))
    assert type(raised.value).__name__ == f"Remote{name}"
    assert isinstance(raised.value, {"KeyError": KeyError, "ValueError": ValueError}.get(name, Exception))


@ways
def test_a_registered_exception_keeps_its_type_and_text(way: Way) -> None:
    with pytest.raises(raising.Registered, match="foo") as raised:
        way(TO, raising.raises_registered)
    assert isinstance(raised.value, RemoteError) and isinstance(raised.value, RuntimeError)
    assert raised.value.remote_message == "foo" and "raises_registered" in raised.value.remote_traceback


@ways
def test_an_exception_that_is_not_registered_is_a_runtime_error_that_names_it(way: Way) -> None:
    with pytest.raises(RuntimeError, match=r"tests\.rpc\.raising\.Unregistered: foo") as raised:
        way(TO, raising.raises_unregistered)
    assert type(raised.value) is RemoteError


def test_the_type_comes_through_a_nested_call() -> None:
    with pytest.raises(raising.Registered, match="foo"):
        rpc.rpc_sync(TO, raising.calls_on, args=("worker2", "Registered"))
    with pytest.raises(RuntimeError, match=r"raising\.Unregistered: foo"):
        rpc.rpc_sync(TO, raising.calls_on, args=("worker2", "Unregistered"))


def test_a_registered_exception_is_a_value_too() -> None:
    back = rpc.rpc_sync(TO, raising.same, args=(raising.Simple("a", 1),))
    assert type(back) is raising.Simple and back.args == ("a", 1)
    with pytest.raises(InvalidArgumentError, match="Unregistered cannot be sent"):
        rpc.rpc_sync(TO, raising.same, args=(raising.Unregistered("x"),))


@pytest.mark.parametrize("make", [lambda: rpc.remote(TO, s.Keeper), lambda: rpc.remote(TO, torch.ones, args=(2,))])
def test_an_unknown_method_is_an_attribute_error(make: Callable[[], rpc.RRef]) -> None:
    rref = make()
    uses: list[Callable[[], Any]] = [
        lambda: rref.rpc_sync().non_exist(),
        lambda: rref.rpc_async().non_exist().wait(),
        lambda: rref.remote().non_exist().to_here(),
    ]
    for use in uses:
        with pytest.raises(AttributeError, match="has no attribute 'non_exist'") as raised:
            use()
        assert isinstance(raised.value, tc.errors.UnknownMethodError) and isinstance(raised.value, RuntimeError)


def test_a_function_that_is_not_allowed_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="is not on this owner's allow-list"):
        rpc.rpc_sync(TO, "tests.rpc.situations.no_such_function")


def test_a_local_backward_that_fails_is_a_runtime_error_and_keeps_its_type() -> None:
    a = leaf()
    with autograd.context() as context_id:
        loss = FailingBackward.apply(rpc.rpc_sync(TO, torch.add, args=(a, a))).sum()
        with pytest.raises(RuntimeError, match=r"Error on Node \d+: this backward is broken") as raised:
            autograd.backward(context_id, [loss])
    assert isinstance(raised.value, ArithmeticError)
    assert type(raised.value.__cause__) is ArithmeticError


def test_a_remote_backward_that_fails_is_a_runtime_error() -> None:
    a = leaf()
    with autograd.context() as context_id:
        result = rpc.rpc_sync(TO, s.fails_in_backward, args=(a,))
        with pytest.raises(RuntimeError, match="this backward is broken"):
            autograd.backward(context_id, [result.sum()])


def test_an_unknown_context_is_a_runtime_error_with_the_words_of_torch() -> None:
    with autograd.context() as ended:
        optimizer = DistributedOptimizer(torch.optim.SGD, [leaf()], lr=0.1)
    for use in (autograd.get_gradients, optimizer.step, lambda number: autograd.backward(number, [leaf().sum()])):
        with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {ended}"):
            use(ended)


def test_an_optimizer_that_fails_is_a_runtime_error() -> None:
    rref = rpc.remote(TO, torch.ones, args=(2,))
    with pytest.raises(RuntimeError, match="Invalid learning rate"):
        DistributedOptimizer(torch.optim.SGD, [rref], lr=-0.1)
    with pytest.raises(RuntimeError, match="takes references to parameters and tensors, not a int"):
        DistributedOptimizer(torch.optim.SGD, [1], lr=0.1)


def test_misuse_of_the_group_is_a_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="RPC is already initialized"):
        rpc.init_rpc("another")
    with pytest.raises(RuntimeError, match="could not find destination"):
        rpc.get_worker_info("nobody")
    with pytest.raises(RuntimeError, match="nobody"):
        rpc.rpc_sync("nobody", s.nothing, timeout=0.2)
    with pytest.raises(RuntimeError, match="the group is open"):
        rpc.barrier()
    with pytest.raises(RuntimeError, match="did not come within"):
        rpc.barrier(["worker0", "worker1"], timeout=0.05)
