"""Functions whose answer comes later, or that make callbacks."""

from __future__ import annotations

import threading
from typing import Any

import torch

from ps_service import async_execution, remote
from trainer_client import rpc


@remote
@async_execution
def async_raises() -> rpc.Future[None]:
    raise RuntimeError("expected error")


@remote
@async_execution
def async_fails() -> rpc.Future[None]:
    failed: rpc.Future[None] = rpc.Future()
    failed.set_exception(ValueError("later"))
    return failed


@remote
@async_execution
def async_wrong_type() -> torch.Tensor:
    return torch.zeros(2)


@remote
@async_execution
def async_add(to: str, x: torch.Tensor, y: torch.Tensor) -> rpc.Future[torch.Tensor]:
    return rpc.rpc_async(to, torch.add, args=(x, y))


@remote
@async_execution
def async_with_torchs_future(x: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    threading.Thread(target=lambda: future.set_result(x + 1)).start()
    return future


@remote
@async_execution
def async_chained(to: str, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> rpc.Future[torch.Tensor]:
    return rpc.rpc_async(to, torch.add, args=(x, y)).then(lambda future: future.wait() + z)


@remote
@async_execution
def async_nested(to: str, x: torch.Tensor, y: torch.Tensor) -> rpc.Future[torch.Tensor]:
    return rpc.rpc_async(to, async_add, args=(rpc.get_worker_info().name, x, y))


@remote
@async_execution
def async_multi_chained(to: str, x: torch.Tensor, count: int, step: float) -> rpc.Future[torch.Tensor]:
    future = rpc.rpc_async(to, torch.add, args=(x, 0.0))
    for _ in range(count):
        future = future.then(lambda done: done.wait() + step)
    return future


@remote
@async_execution
def async_fanout(to: str, x: torch.Tensor, count: int, step: float) -> rpc.Future[torch.Tensor]:
    calls = [rpc.rpc_async(to, torch.add, args=(x, i * step)) for i in range(count)]
    return rpc.collect_all(calls).then(lambda done: sum((each.wait() for each in done.wait()), torch.zeros_like(x)))


@remote
def returns_a_future() -> rpc.Future[int]:
    return rpc.Future()


@remote
def with_callback(to: str, x: torch.Tensor) -> torch.Tensor:
    return rpc.rpc_async(to, torch.add, args=(x, x)).then(lambda done: done.wait() + 1).wait()


FUTURES: dict[str, rpc.Future[int]] = {}


@remote
@async_execution
def async_until(name: str) -> rpc.Future[int]:
    return FUTURES.setdefault(name, rpc.Future())


@remote
def async_let_go(name: str, value: int) -> None:
    FUTURES.setdefault(name, rpc.Future()).set_result(value)


@remote
@async_execution
def borrows_in_a_callback(module: rpc.RRef, x: torch.Tensor) -> rpc.Future[Any]:
    here = rpc.get_worker_info().name
    return rpc.rpc_async(here, torch.add, args=(x, 0.0)).then(lambda done: module.local_value()(done.wait()))


@remote
@async_execution
def calls_in_a_callback(module: rpc.RRef, x: torch.Tensor) -> rpc.Future[Any]:
    here = rpc.get_worker_info().name
    return rpc.rpc_async(here, torch.add, args=(x, 0.0)).then(lambda done: module.rpc_sync().forward(done.wait()))


@remote
@async_execution
def async_fanout_of_torch(to: str, x: torch.Tensor, count: int) -> torch.futures.Future[torch.Tensor]:
    calls = [rpc.rpc_async(to, torch.add, args=(x, i)) for i in range(count)]
    every = torch.futures.collect_all(calls)  # type: ignore[arg-type]
    return every.then(lambda done: sum((each.wait() for each in done.wait()), torch.zeros_like(x)))
