"""What is late, lost or broken, under the names that torch's own suite gives these situations."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ps_wire.errors import DeadlineExceededError, InvalidArgumentError, PsError
from tests.forking.process import Forked, Forking
from tests.rpc import situations as s
from trainer_client import autograd, rpc
from trainer_client.rpc.current import agent


def delayed(to: str, event: str) -> None:
    """What is made remotely takes longer than its caller will wait."""
    rref = rpc.remote(to, s.wait_for, args=(event,), timeout=0.05)
    for use in (rref.to_here, lambda: rpc.rpc_sync("worker2", s.owner_of, args=(rref,)), rref.rpc_sync().anything):
        with pytest.raises(DeadlineExceededError):
            use()
    assert not rref.confirmed_by_owner()
    rpc.rpc_sync(to, s.let_go, args=(event,))


def test_udf_remote_message_delay_timeout() -> None:
    delayed("worker1", "delay")


def test_udf_remote_message_delay_timeout_to_self() -> None:
    delayed("worker0", "delay to self")


def test_rref_to_here_timeout() -> None:
    rref = rpc.remote("worker1", s.wait_for, args=("to_here",))
    with pytest.raises(DeadlineExceededError, match="the call goes on"):
        rref._get_future().wait(0.05)
    rpc.rpc_sync("worker1", s.let_go, args=("to_here",))
    assert rref.to_here() is True


def test_handle_send_exceptions(forking: Forking) -> None:
    with mortal(forking, "for_send") as (process, rref):
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with pytest.raises(PsError):
            rpc.rpc_sync("for_send", s.nothing, timeout=0.2)
        with pytest.raises(PsError):
            rref.rpc_sync(timeout=0.2).value()


@contextmanager
def mortal(forking: Forking, name: str) -> Iterator[tuple[Forked, rpc.RRef]]:
    """A member that will be killed, and a reference to something it has."""
    with forking.start("tests.rpc.member", name, agent().server.address) as process:
        assert process.stdout.readline() == f"{name} is there\n"
        rref = rpc.remote(name, s.Keeper, args=(1,))
        assert rref.rpc_sync().value() == 1
        yield process, rref


def test_backward_node_failure(forking: Forking) -> None:
    with mortal(forking, "for_backward") as (process, _):
        try:
            a = torch.ones(3, 3, requires_grad=True)
            with autograd.context() as context_id:
                result = rpc.rpc_sync("for_backward", torch.add, args=(a, a))
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                rpc.set_rpc_timeout(0.3)
                with pytest.raises(PsError):
                    autograd.context_of(context_id).propagate([result.sum()])
                assert autograd.get_gradients(context_id) == {}
        finally:
            rpc.set_rpc_timeout(30.0)


def test_custom_exception_throw_during_reconstruction() -> None:
    with pytest.raises(InvalidArgumentError, match=r"no tests\.rpc\.situations\.Fussy could be made of what arrived"):
        rpc.rpc_sync("worker1", s.my_add, args=(s.Fussy(fine=True), 1))
    assert rpc.rpc_sync("worker1", s.my_add, args=(1, 1)) == 2


def test_wait_all_raise_in_body() -> None:
    futures = [rpc.rpc_async("worker1", s.my_add, args=(n, 1)) for n in range(3)]
    with pytest.raises(ValueError, match="in the body"):
        raise ValueError("in the body")
    assert rpc.wait_all(futures) == [1, 2, 3]


def test_deadlock() -> None:
    # All call all, from inside calls, at the same time.
    names = [f"worker{n}" for n in range(4)]
    futures = [rpc.rpc_async(name, s.call_everybody, args=(names,), timeout=30) for name in names for _ in range(5)]
    assert rpc.wait_all(futures) == [16] * 20


def parameter_server(sparse: bool) -> None:
    """One owner, and members as trainers that fetch a model's gradients from calls in turn."""
    kept = rpc.RRef(torch.eye(3).to_sparse() if sparse else torch.eye(3))
    futures = [rpc.rpc_async(f"worker{n}", s.scaled_value, args=(kept, float(n))) for n in (1, 2, 3)]
    for n, result in zip((1, 2, 3), rpc.wait_all(futures, timeout=30), strict=True):
        dense = result.to_dense() if result.is_sparse else result
        assert torch.equal(dense, torch.eye(3) * n)


def test_my_parameter_server() -> None:
    parameter_server(False)


def test_my_parameter_server_sparse() -> None:
    parameter_server(True)


def test_calls_that_were_given_up_and_still_run_do_not_hold_up_others() -> None:
    events = [f"given up {number}" for number in range(12)]
    try:
        for event in events:
            future = rpc.rpc_async("worker3", s.wait_for, args=(event,))
            assert rpc.rpc_sync("worker3", s.begun, args=(event,))
            future.cancel()
        assert rpc.rpc_sync("worker3", s.my_add, args=(1, 2)) == 3
    finally:
        for event in events:
            rpc.rpc_sync("worker3", s.let_go, args=(event,))
