"""Tests the lifetimes of references: when messages cross, results are unused, or a member is lost."""

from __future__ import annotations

import gc
import os
import signal
import threading

import pytest
import torch

from ps_wire.errors import CancelledCallError, DeadlineExceededError, InvalidArgumentError, NotAllowedError, PsError
from tests.forking.process import Forking
from tests.rpc import situations as s
from tests.rpc.references import eventually, freed, references, settled
from trainer_client import autograd, rpc
from trainer_client.nn import RemoteModule
from trainer_client.rpc.current import agent


def test_unused_references_are_given_back() -> None:
    gc.collect()
    before = references("worker1")
    for _ in range(20):
        rpc.remote("worker1", s.Keeper)
    rpc.rpc_async("worker1", s.make_rref, args=(1,))
    rpc.rpc_sync("worker1", s.nothing)
    settled("worker1", before)


def test_references_of_cancelled_calls_are_given_back() -> None:
    before = references("worker1")
    with pytest.raises(DeadlineExceededError):
        rpc.remote("worker1", s.wait_for, args=("given up",), timeout=0.05).to_here()
    rpc.rpc_sync("worker1", s.let_go, args=("given up",))
    settled("worker1", before)


def test_a_value_that_its_owner_keeps_can_be_given_out_again() -> None:
    rpc.rpc_sync("worker1", s.keep_rref, args=("again", [7]))
    for _ in range(3):
        rref = rpc.rpc_sync("worker1", s.kept_rref, args=("again",))
        reference = rref.handle().ref
        assert rref.to_here() == [7]
        del rref
        assert freed(reference)


def test_one_that_is_made_here_can_be_given_out_again() -> None:
    mine = rpc.RRef([3])
    for worker in ("worker1", "worker2", "worker1"):
        assert rpc.rpc_sync(worker, s.to_here_of, args=(mine,)) == [3]
        settled("worker0", references("worker0"))


def test_both_ends_may_let_go_in_any_order() -> None:
    """A value on worker2 that worker1 made and gave to worker0 is freed with its last reference."""
    for first, second in (("worker0", "worker1"), ("worker1", "worker0")):
        rref = rpc.rpc_sync("worker1", s.remote_and_keep, args=("worker2", "both ends"))
        reference = rref.handle().ref
        for who in (first, second):
            assert rpc.rpc_sync("worker2", s.is_there, args=(str(reference),))
            if who == "worker0":
                del rref
                gc.collect()
            else:
                rpc.rpc_sync("worker1", s.drop, args=("both ends",))
        assert freed(reference)


def test_a_session_does_not_stay_in_the_call_that_opened_it() -> None:
    # The first call from worker3 to worker2 is made by a call that is given up.
    with pytest.raises(DeadlineExceededError):
        rpc.rpc_sync("worker3", s.nested_wait, args=("worker2", "opened by"), timeout=0.3)
    rpc.rpc_sync("worker2", s.let_go, args=("opened by",))
    for _ in range(3):
        assert rpc.rpc_sync("worker3", s.first_of_pair, args=("worker2", "worker1")) == 3


def test_callbacks_call_modules_and_borrow_none() -> None:
    module = rpc.remote("worker1", s.Scale)
    with pytest.raises(InvalidArgumentError, match="lent to a call only while that runs, and in its thread"):
        rpc.rpc_sync("worker1", s.borrows_in_a_callback, args=(module, torch.ones(2)))
    assert rpc.rpc_sync("worker1", s.calls_in_a_callback, args=(module, torch.ones(2))).tolist() == [2.0, -2.0]
    with pytest.raises(InvalidArgumentError, match="methods of modules cannot"):
        RemoteModule("worker1", s.Late).forward(torch.ones(2))


def test_classes_with_a_codec_cannot_be_made_by_name() -> None:
    with pytest.raises(NotAllowedError):
        rpc.rpc_sync("worker1", RemoteModule, args=("worker2", torch.nn.Linear))


def test_a_pass_ends_on_every_owner_when_its_trainer_is_gone(forking: Forking) -> None:
    owners = ("worker1", "worker2")
    # Passes of other tests end there soon after these, and are not counted here.
    assert eventually(lambda: not any(rpc.rpc_sync(to, s.seen_contexts) for to in owners))
    with forking.start("tests.rpc.doomed", agent().server.address) as doomed:
        assert doomed.stdout.readline() == "in the middle of a pass\n"
        assert [rpc.rpc_sync(to, s.seen_contexts) for to in owners] == [1, 1]
        kept = references("worker1")
        os.kill(doomed.pid, signal.SIGKILL)
    assert eventually(lambda: not any(rpc.rpc_sync(to, s.seen_contexts) for to in owners))
    assert eventually(lambda: references("worker1") < kept)


def test_an_owner_that_is_gone_is_told_by_name(forking: Forking) -> None:
    with forking.start("tests.rpc.member", "mortal", agent().server.address) as mortal:
        assert mortal.stdout.readline() == "mortal is there\n"
        rref = rpc.remote("mortal", s.Keeper, args=(4,))
        module = RemoteModule("worker1", s.Scale)
        assert rref.rpc_sync().value() == 4
        os.kill(mortal.pid, signal.SIGKILL)
    with pytest.raises(DeadlineExceededError, match="'mortal', to which there is no connection"):
        rref.rpc_sync(timeout=0.5).value()
    with pytest.raises(PsError):
        rpc.rpc_sync("worker1", s.call_method, args=(rref, "value"), timeout=0.5)
    x = torch.ones(2, requires_grad=True)
    with autograd.context() as context_id:
        autograd.backward(context_id, [module.forward(x).sum()])
        assert autograd.get_gradients(context_id)[x].tolist() == [2.0, -2.0]


def test_leaving_ends_the_waits_of_other_members(forking: Forking) -> None:
    with forking.start("tests.rpc.leaver", agent().server.address) as leaver:
        output = leaver.communicate(timeout=60)
        assert leaver.returncode == 0
    assert output.splitlines() == ["ClosedError", "ClosedError", "left"]


def test_two_that_want_the_same_session_get_it() -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(rpc.rpc_sync("worker3", s.my_add, args=(1, 1)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [2] * 8


def test_cancelling_a_future_cancels_its_call() -> None:
    future = rpc.rpc_async("worker1", s.nested_wait, args=("worker2", "cancelled"))
    assert rpc.rpc_sync("worker2", s.begun, args=("cancelled",))
    future.cancel()
    with pytest.raises(CancelledCallError):
        future.wait()
    assert rpc.rpc_sync("worker1", s.how_it_ended, args=("cancelled",)) == "CancelledCallError"
    rpc.rpc_sync("worker2", s.let_go, args=("cancelled",))
