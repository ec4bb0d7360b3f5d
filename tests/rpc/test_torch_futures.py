"""Our futures, passed to the functions of `torch.futures`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from ps_wire.errors import CancelledCallError, DeadlineExceededError, RemoteError
from tests.rpc import situations as s
from trainer_client import autograd, rpc
from trainer_client.rpc.completions import Completions

TO = "worker1"
ONES = torch.ones(2)


def wait_all(*futures: Any) -> list[Any]:
    return torch.futures.wait_all(list(futures))


def collect_all(*futures: Any) -> torch.futures.Future[Any]:
    return torch.futures.collect_all(list(futures))


def in_thread(function: Any) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_a_future_is_one_of_torch() -> None:
    assert isinstance(rpc.rpc_async(TO, s.my_add, args=(1, 2)), torch.futures.Future)
    assert isinstance(rpc.rpc_async(TO, s.my_add, args=(1, 2)).then(lambda done: 1), torch.futures.Future)
    assert isinstance(rpc.Future(devices=[]), torch.futures.Future)


def test_torchs_wait_all_returns_results_in_order() -> None:
    assert wait_all(*(rpc.rpc_async(f"worker{n % 4}", s.my_add, args=(n, 1)) for n in range(40))) == list(range(1, 41))


def test_torchs_wait_all_takes_results_that_were_read() -> None:
    read, fresh = rpc.rpc_async(TO, s.my_add, args=(1, 2)), rpc.rpc_async(TO, s.my_add, args=(3, 4))
    assert read.wait() == 3
    assert wait_all(read, fresh, read) == [3, 7, 3]


def test_torchs_wait_all_takes_results_that_were_awaited() -> None:
    async def program() -> rpc.Future[int]:
        future = rpc.rpc_async(TO, s.my_add, args=(1, 2))
        assert await future == 3
        return future

    assert wait_all(asyncio.run(program())) == [3]


def test_torchs_wait_all_keeps_the_types_of_errors() -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        wait_all(rpc.rpc_async(TO, s.my_add, args=(1, 2)), rpc.rpc_async(TO, s.raises))
    assert isinstance(caught.value, RemoteError) and caught.value.remote_type == "builtins.ValueError"
    with pytest.raises(DeadlineExceededError):
        wait_all(rpc.rpc_async(TO, s.wait_for, args=("torch_future",), timeout=0.05))
    rpc.rpc_sync(TO, s.let_go, args=("torch_future",))


def test_torchs_wait_all_ends_with_a_cancelled_call() -> None:
    future = rpc.rpc_async(TO, s.wait_for, args=("cancelled_future",))
    future.cancel()
    with pytest.raises(CancelledCallError):
        wait_all(future)
    rpc.rpc_sync(TO, s.let_go, args=("cancelled_future",))


def test_torchs_wait_all_takes_futures_without_a_call() -> None:
    first: rpc.Future[int] = rpc.Future()
    second: torch.futures.Future[int] = torch.futures.Future()
    thread = in_thread(lambda: (first.set_result(1), second.set_result(2)))
    assert wait_all(first, second, first.then(lambda done: done.value() + 2)) == [1, 2, 3]
    thread.join(20)
    failed: rpc.Future[int] = rpc.Future()
    failed.set_exception(KeyError("lost"))
    for _ in range(2):
        with pytest.raises(KeyError, match="lost"):
            wait_all(failed)


class Odd(Exception):
    def __new__(cls, *, code: int) -> Odd:
        made = super().__new__(cls)
        made.args = (code,)
        return made

    def __init__(self, *, code: int) -> None:
        self.code = code


@pytest.mark.parametrize("error", [Odd(code=7), FileNotFoundError(2, "no such file", "name")], ids=repr)
def test_torchs_wait_all_raises_errors_of_any_class(error: Exception) -> None:
    failed: rpc.Future[int] = rpc.Future()
    failed.set_exception(error)
    with pytest.raises(type(error)) as caught:
        wait_all(failed)
    assert str(caught.value) == str(error) and vars(caught.value) == vars(error)


def test_torchs_wait_all_ends_with_a_time_limit_of_a_waiting_thread() -> None:
    future: rpc.Future[int] = rpc.Future()
    with pytest.raises(DeadlineExceededError):
        future.wait(0.01)
    future.set_result(3)
    assert wait_all(future) == [3]


def test_a_callback_of_torchs_collect_all_may_call_and_wait() -> None:
    def again(done: torch.futures.Future[Any]) -> int:
        numbers = [each.wait() for each in done.wait()]
        return sum(wait_all(*(rpc.rpc_async("worker2", s.my_add, args=(n, 10)) for n in numbers)))

    every = collect_all(*(rpc.rpc_async(TO, s.my_add, args=(n, 1)) for n in range(5)))
    assert every.then(again).wait() == 15 + 50


def test_a_callback_that_waits_holds_up_no_other_future() -> None:
    go = threading.Event()
    # It must not be done before it has its callback, which would run here then.
    until = rpc.rpc_async(TO, s.async_until, args=("a callback waits",))
    held = collect_all(until).then(lambda _: go.wait(60))
    rpc.rpc_sync(TO, s.async_let_go, args=("a callback waits", 1))
    others = [rpc.rpc_async(TO, s.my_add, args=(n, 1)) for n in range(5)]
    assert wait_all(*others) == [1, 2, 3, 4, 5] and not held.done()
    go.set()
    assert held.wait()


async def test_a_completion_that_waits_holds_up_none_behind_it() -> None:
    completions, go, done = Completions(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    completions.add(lambda: go.wait(60), loop)
    completions.add(done.set, loop)
    assert await asyncio.to_thread(done.wait, 60)
    go.set()


def test_calls_of_a_pass() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    with autograd.context() as context_id:
        results = wait_all(*(rpc.rpc_async(f"worker{n}", torch.mul, args=(w, float(n))) for n in (1, 2, 3)))
        autograd.backward(context_id, [torch.stack(results).sum()])
        assert torch.equal(autograd.get_gradients(context_id)[w], torch.full((2,), 6.0))


def test_a_function_may_return_torchs_collected_futures() -> None:
    result = rpc.rpc_sync(TO, s.async_fanout_of_torch, args=("worker2", ONES, 4))
    assert torch.equal(result, torch.full((2,), 10.0))


def test_the_future_of_a_reference() -> None:
    rref = rpc.remote(TO, s.my_add, args=(1, 2))
    future = rref._get_future()
    assert isinstance(future, torch._C.Future) and wait_all(future) == [rref]
    assert rref.to_here() == 3
    here = rpc.RRef(5)
    assert wait_all(here._get_future()) == [here]
    with pytest.raises(ValueError, match="expected"):
        wait_all(rpc.remote(TO, s.raises)._get_future())


def leaves_nothing(make: Any) -> None:
    """Checks that a future is freed once it is neither used nor on its way."""
    future = make()
    freed = threading.Event()
    weakref.finalize(future, freed.set)
    del future
    for _ in range(200):
        rpc.rpc_sync(TO, s.my_add, args=(1, 2))
        gc.collect()
        if freed.is_set():
            return
    raise AssertionError("the future is still there")


def test_a_future_that_was_dropped_is_freed() -> None:
    leaves_nothing(lambda: rpc.rpc_async(TO, s.my_add, args=(1, 2)))
    leaves_nothing(lambda: rpc.rpc_async(TO, s.raises))


def waited_for(future: rpc.Future[Any]) -> rpc.Future[Any]:
    for wait in (future.wait, lambda: wait_all(future), lambda: rpc.wait_all([future])):
        with contextlib.suppress(ValueError):
            wait()
    return future


def test_a_future_whose_error_was_raised_is_freed() -> None:
    leaves_nothing(lambda: waited_for(rpc.rpc_async(TO, s.raises)))
    leaves_nothing(lambda: waited_for(rpc.rpc_async(TO, s.my_add, args=(1, 2))))
