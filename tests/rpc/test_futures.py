"""Futures, under the names that torch's own suite gives these situations."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest
import torch

from ps_wire.errors import DeadlineExceededError, InvalidArgumentError
from tests.rpc import situations as s
from trainer_client import rpc

TO = "worker1"
ONES = torch.ones(2)


def test_future_wait_twice() -> None:
    failing = [rpc.rpc_async(TO, s.raises) for _ in range(3)]
    for future in failing:
        for _ in range(2):
            with pytest.raises(ValueError, match="expected"):
                future.wait()


def test_callback_simple() -> None:
    counts: list[int] = []
    future = rpc.rpc_async(TO, s.my_add, args=(1, 2)).then(lambda done: counts.append(done.wait()) or 7)
    assert future.wait() == 7 and counts == [3]


def test_callback_wrong_arg_num() -> None:
    future = rpc.rpc_async(TO, s.my_add, args=(1, 2)).then(lambda: 0)  # type: ignore[arg-type, misc]
    with pytest.raises(TypeError, match="positional argument") as caught:
        future.wait()
    assert isinstance(caught.value, RuntimeError)


def test_callback_wrong_arg_type() -> None:
    future = rpc.rpc_async(TO, s.my_add, args=(1, 2)).then(lambda done: done + 1)  # type: ignore[operator]
    with pytest.raises(TypeError, match="unsupported operand"):
        future.wait()
    with pytest.raises(TypeError, match=r"then\(\) takes a function"):
        future.then(3)  # type: ignore[arg-type]


def test_callback_multi() -> None:
    first = rpc.rpc_async(TO, s.my_add, args=(ONES, ONES))
    later = [first.then(lambda done, n=n: done.wait() * n) for n in range(10)]  # type: ignore[misc]
    assert [future.wait()[0].item() for future in later] == [2.0 * n for n in range(10)]


def test_callback_chain() -> None:
    future = rpc.rpc_async(TO, torch.add, args=(ONES, 1))
    for _ in range(20):
        future = future.then(lambda done: done.wait() + 1)
    assert torch.equal(future.wait(), torch.full((2,), 22.0))


def test_callback_in_rpc() -> None:
    assert torch.equal(rpc.rpc_sync(TO, s.with_callback, args=("worker2", ONES)), torch.full((2,), 3.0))


def test_callback_with_ret() -> None:
    def again(done: rpc.Future[torch.Tensor]) -> torch.Tensor:
        return rpc.rpc_sync("worker2", torch.add, args=(done.wait(), 1))

    assert torch.equal(rpc.rpc_async(TO, torch.add, args=(ONES, 1)).then(again).wait(), torch.full((2,), 3.0))


def test_callback_with_error() -> None:
    def fail(done: rpc.Future[None]) -> None:
        with pytest.raises(ValueError, match="expected"):
            done.wait()
        raise RuntimeError("another expected error")

    with pytest.raises(RuntimeError, match="another expected error"):
        rpc.rpc_async(TO, s.raises).then(fail).wait()


def test_callback_none() -> None:
    with pytest.raises(TypeError, match="not a NoneType"):
        rpc.rpc_async(TO, s.raises).then(None)  # type: ignore[arg-type]


def test_add_done_callback() -> None:
    called = threading.Event()
    future = rpc.rpc_async(TO, s.my_add, args=(1, 2))
    future.add_done_callback(lambda done: called.set())
    assert future.wait() == 3 and called.wait(20)
    again: list[int] = []
    future.add_done_callback(lambda done: again.append(done.value()))
    assert again == [3], "a future that is done calls at once"


def test_mark_future_twice() -> None:
    future: rpc.Future[int] = rpc.Future()
    future.set_result(1)
    with pytest.raises(RuntimeError, match="can only be marked completed once"):
        future.set_result(2)
    with pytest.raises(RuntimeError, match="can only be marked completed once"):
        rpc.rpc_async(TO, s.my_add, args=(1, 2)).set_result(3)


def test_pickle_future() -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        pickle.dumps(rpc.Future())
    with pytest.raises(InvalidArgumentError, match="Future cannot be sent"):
        rpc.rpc_sync(TO, s.my_add, args=(rpc.Future(), 1))


def test_future_done() -> None:
    future = rpc.rpc_async(TO, s.my_add, args=(1, 2))
    future.wait()
    assert future.done() and future.value() == 3
    waiting: rpc.Future[int] = rpc.Future()
    assert not waiting.done()
    with pytest.raises(RuntimeError, match="not done yet"):
        waiting.value()
    with pytest.raises(DeadlineExceededError, match=r"within 0\.01 s"):
        waiting.wait(0.01)


def test_future_done_exception() -> None:
    future = rpc.rpc_async(TO, s.raises)
    with pytest.raises(ValueError):
        future.wait()
    assert future.done()
    with pytest.raises(ValueError):
        future.value()


def test_future_in_rpc() -> None:
    callbacks = [rpc.rpc_async(TO, s.with_callback, args=("worker2", n * ONES)) for n in range(3)]
    assert [each.wait().tolist() for each in callbacks] == [[2.0 * n + 1] * 2 for n in range(3)]


def test_future_nested_callback() -> None:
    inner = rpc.rpc_async(TO, s.my_add, args=(1, 2)).then(
        lambda done: rpc.rpc_async("worker2", s.my_add, args=(done.wait(), 10)).then(lambda more: more.wait() + 100)
    )
    assert inner.wait().wait() == 113


def test_wait_all() -> None:
    futures = [rpc.rpc_async(f"worker{n % 4}", s.my_add, args=(n, 1)) for n in range(8)]
    assert rpc.wait_all(futures) == [n + 1 for n in range(8)]
    assert rpc.wait_all([]) == []


def test_wait_all_multiple_call() -> None:
    futures = [rpc.rpc_async(TO, s.my_add, args=(n, 1)) for n in range(20)]
    futures.append(rpc.rpc_async("worker2", torch.add, args=(ONES, 1)))
    *numbers, tensor = rpc.wait_all(futures)
    assert numbers == [n + 1 for n in range(20)] and torch.equal(tensor, ONES + 1)


def test_wait_all_timeout() -> None:
    futures = [rpc.rpc_async(TO, s.wait_for, args=("wait_all",), timeout=0.05)]
    with pytest.raises(DeadlineExceededError):
        rpc.wait_all(futures)
    slow = [rpc.rpc_async(TO, s.wait_for, args=("wait_all",), timeout=20)]
    with pytest.raises(DeadlineExceededError, match="the call goes on"):
        rpc.wait_all(slow, timeout=0.05)
    rpc.rpc_sync(TO, s.let_go, args=("wait_all",))
    assert rpc.wait_all(slow) == [True]


def test_wait_all_raise_in_user_func() -> None:
    with pytest.raises(ValueError, match="expected"):
        rpc.wait_all([rpc.rpc_async(TO, s.raises)])


def test_wait_all_with_exception() -> None:
    with pytest.raises(ValueError, match="expected"):
        rpc.wait_all([rpc.rpc_async(TO, s.raises) for _ in range(10)])


def test_wait_all_with_partial_exception() -> None:
    futures = [rpc.rpc_async(TO, torch.add, args=(ONES, 1)) for _ in range(10)]
    futures.insert(3, rpc.rpc_async(TO, s.raises))
    with pytest.raises(ValueError, match="expected"):
        rpc.wait_all(futures)


def test_wait_all_exit_early_python() -> None:
    futures = [rpc.rpc_async(TO, s.raises), rpc.rpc_async(TO, s.my_add, args=(1, 2)), rpc.rpc_async(TO, s.raises)]
    with pytest.raises(ValueError):
        rpc.collect_all(futures).then(lambda done: [each.wait() for each in done.wait()]).wait()


def test_wait_all_exit_early_builtin() -> None:
    futures = [rpc.rpc_async(TO, torch.add), rpc.rpc_async(TO, torch.add, args=(ONES, 1))]
    with pytest.raises(TypeError):
        rpc.wait_all(futures)


def test_futures_can_be_awaited() -> None:
    async def program() -> list[int]:
        return list(await asyncio.gather(*(rpc.rpc_async(f"worker{n}", s.my_add, args=(n, 1)) for n in range(4))))

    assert asyncio.run(program()) == [1, 2, 3, 4]


def test_wait_all_stops_at_the_first_error() -> None:
    never: rpc.Future[int] = rpc.Future()
    nor_this: torch.futures.Future[int] = torch.futures.Future()
    with pytest.raises(ValueError, match="expected"):
        rpc.wait_all([never, nor_this, rpc.rpc_async(TO, s.raises)], timeout=60)
    assert not never.done() and not nor_this.done()
    with pytest.raises(ValueError, match="expected"):
        rpc.collect_all([never, rpc.rpc_async(TO, s.raises), nor_this]).wait(60)


def test_wait_all_takes_futures_of_torch() -> None:
    theirs: torch.futures.Future[int] = torch.futures.Future()
    theirs.set_result(1)
    assert rpc.wait_all([theirs, rpc.rpc_async(TO, s.my_add, args=(1, 1))]) == [1, 2]
    failed: torch.futures.Future[int] = torch.futures.Future()
    failed.set_exception(KeyError("lost"))  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="lost"):
        rpc.wait_all([theirs, failed])
    listed = [theirs, rpc.rpc_async(TO, s.my_add, args=(1, 1))]
    assert rpc.collect_all(listed).wait() == listed and rpc.collect_all([]).wait() == []


def test_callbacks_run_in_the_order_in_which_they_were_added() -> None:
    for future in (rpc.Future[int](), rpc.rpc_async("worker1", s.my_add, args=(1, 1))):
        overtaken, after = threading.Event(), list[bool]()
        future.add_done_callback(lambda _, after=after, event=overtaken: after.append(event.wait(0.1)))
        following = future.then(lambda _, event=overtaken: event.set())
        if future._own:
            future.set_result(2)
        following.wait()
        assert after == [False]
        # Once they have begun, further ones run at once.
        assert future.then(lambda done: done.then(lambda _: 1).wait()).wait() == 1
