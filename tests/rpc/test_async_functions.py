"""Functions whose answer comes when a future is done, under the names of torch's own suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.rpc import situations as s
from trainer_client import rpc

TO = "worker1"
ONES = torch.ones(2)


def sync(function: Any, *args: Any) -> Any:
    return rpc.rpc_sync(TO, function, args=args)


def later(function: Any, *args: Any) -> Any:
    return rpc.rpc_async(TO, function, args=args).wait()


def away(function: Any, *args: Any) -> Any:
    return rpc.remote(TO, function, args=args).to_here()


Way = Callable[..., Any]


def raises(way: Way) -> None:
    with pytest.raises(RuntimeError, match="expected error"):
        way(s.async_raises)
    with pytest.raises(ValueError, match="later"):
        way(s.async_fails)


def test_async_function_raise() -> None:
    raises(sync)


def test_async_function_raise_async() -> None:
    raises(later)


def test_async_function_raise_remote() -> None:
    raises(away)


def wrong_type(way: Way) -> None:
    with pytest.raises(
        TypeError, match=r"@rpc\.async_function must return a torch\.futures\.Future object, .*not a Tensor"
    ):
        way(s.async_wrong_type)


def test_async_function_wrong_return_type() -> None:
    wrong_type(sync)


def test_async_function_wrong_return_type_async() -> None:
    wrong_type(later)


def test_async_function_wrong_return_type_remote() -> None:
    wrong_type(away)


def test_async_function_simple() -> None:
    assert torch.equal(sync(s.async_add, "worker2", ONES, ONES), ONES * 2)


def with_future_ctor(way: Way) -> None:
    assert torch.equal(way(s.async_with_torchs_future, ONES), ONES + 1)


def test_async_function_with_future_ctor() -> None:
    with_future_ctor(sync)


def test_async_function_with_future_ctor_remote() -> None:
    with_future_ctor(away)


def chained(way: Way) -> None:
    assert torch.equal(way(s.async_chained, "worker2", ONES, ONES, ONES), ONES * 3)


def test_async_function_chained() -> None:
    chained(sync)


def test_async_function_chained_remote() -> None:
    chained(away)


def nested(way: Way) -> None:
    assert torch.equal(way(s.async_nested, "worker2", ONES, ONES), ONES * 2)


def test_async_function_nested() -> None:
    nested(sync)


def test_async_function_nested_remote() -> None:
    nested(away)


def static(way: Way) -> None:
    assert torch.equal(way(s.Keeper.static_later, "worker2", ONES, ONES), ONES * 2)


def test_async_static_method() -> None:
    static(sync)


def test_async_static_method_remote() -> None:
    static(away)


def by_class(way: Way) -> None:
    assert torch.equal(way(s.Keeper.class_later, "worker2", ONES, ONES), ONES * 2)


def test_async_class_method() -> None:
    by_class(sync)


def test_async_class_method_remote() -> None:
    by_class(away)


def proxies(call: Callable[[rpc.RRef], Any], value: Callable[[Any], Any]) -> None:
    keeper = rpc.remote(TO, s.Keeper, args=(3,))
    assert torch.equal(value(call(keeper).add_later("worker2", ONES, ONES)), ONES * 5)
    assert torch.equal(value(call(keeper).static_later("worker2", ONES, ONES)), ONES * 2)
    assert torch.equal(value(call(keeper).class_later("worker2", ONES, ONES)), ONES * 2)


def test_async_class_rref_proxy() -> None:
    proxies(lambda rref: rref.rpc_sync(), lambda result: result)


def test_async_class_rref_proxy_async() -> None:
    proxies(lambda rref: rref.rpc_async(), lambda future: future.wait())


def test_async_class_rref_proxy_remote() -> None:
    proxies(lambda rref: rref.remote(), lambda rref: rref.to_here())


def multi_chained(way: Way) -> None:
    assert torch.equal(way(s.async_multi_chained, "worker2", ONES, 20, 1.0), ONES * 21)


def test_async_function_multi_chained() -> None:
    multi_chained(sync)


def test_async_function_multi_chained_async() -> None:
    multi_chained(later)


def test_async_function_multi_chained_remote() -> None:
    multi_chained(away)


def multi_fanout(way: Way) -> None:
    expected = sum(ONES + n for n in range(10))
    assert torch.equal(way(s.async_fanout, "worker2", ONES, 10, 1.0), expected)


def test_async_function_multi_fanout() -> None:
    multi_fanout(sync)


def test_async_function_multi_fanout_async() -> None:
    multi_fanout(later)


def test_async_function_multi_fanout_remote() -> None:
    multi_fanout(away)


def returned(way: Way) -> None:
    with pytest.raises(ValueError, match="Future cannot be sent"):
        way(s.returns_a_future)


def test_return_future() -> None:
    returned(sync)


def test_return_future_async() -> None:
    returned(later)


def test_return_future_remote() -> None:
    # Kept where it is it may be; it is when its value shall travel that it cannot.
    returned(away)


def test_a_function_that_waits_holds_no_thread() -> None:
    futures = [rpc.rpc_async(TO, s.async_until, args=("no_thread",), timeout=20) for _ in range(50)]
    assert rpc.rpc_sync(TO, s.my_add, args=(1, 2)) == 3
    rpc.rpc_sync(TO, s.async_let_go, args=("no_thread", 5))
    assert rpc.wait_all(futures) == [5] * 50
