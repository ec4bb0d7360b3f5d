"""Calls in the profiles of torch's profilers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import profiler, profiler_legacy
from torch.autograd.profiler_util import FunctionEvent

from tests.rpc import situations as s
from trainer_client import autograd, rpc

TO = "worker1"
X = torch.ones(3, 2)
ADD = "torch.add(worker0 -> worker1)"
PROFILES: list[Callable[..., AbstractContextManager[Any]]] = [
    profiler_legacy.profile,
    profiler.profile,
    torch.profiler.profile,
]

each_profile = pytest.mark.parametrize("profile", PROFILES, ids=["legacy", "autograd", "torch.profiler"])


@each_profile
@pytest.mark.parametrize("kind", ["sync", "async", "remote"])
def test_profiler_with_rpc_builtin(profile: Any, kind: str) -> None:
    with profile() as prof:
        if kind == "sync":
            rpc.rpc_sync(TO, torch.add, args=(X, X))
        elif kind == "async":
            rpc.rpc_async(TO, torch.add, args=(X, X)).wait()
        else:
            rref = rpc.remote(TO, torch.add, args=(X, X))
            rref._get_profiling_future().wait()
    [call] = named(prof, f"rpc_{kind}#{ADD}")
    assert call.node_id == rpc.get_worker_info().id
    assert call.is_async and not call.is_remote
    [add] = named(prof, f"rpc_{kind}#{ADD}#remote_op: aten::add")
    assert add.is_remote and add.node_id == rpc.get_worker_info(TO).id
    assert call.time_range.start <= add.time_range.start <= add.time_range.end <= call.time_range.end
    averages = {each.key: each for each in prof.key_averages()}
    assert averages[f"rpc_{kind}#{ADD}#remote_op: aten::add"].count == 1
    assert averages[f"rpc_{kind}#{ADD}"].cpu_time_total == call.time_range.elapsed_us()


def test_profiler_with_sync_rpc_udf() -> None:
    with profiler.profile() as prof, profiler.record_function("foo"):
        rpc.rpc_sync(TO, s.my_add, args=(X, X))
    [call] = named(prof, "rpc_sync#my_add(worker0 -> worker1)")
    [outer] = named(prof, "foo")
    assert names(prof).index(outer.name) < names(prof).index(call.name)


@each_profile
def test_rpc_profiling_async_function(profile: Any) -> None:
    with profile() as prof:
        rpc.rpc_async(TO, s.nested_add, args=("worker2", X, X)).wait()
    outer = "rpc_async#nested_add(worker0 -> worker1)"
    inner = f"{outer}#remote_op: rpc_sync#my_add(worker1 -> worker2)"
    [nested] = named(prof, inner)
    [add] = named(prof, f"{inner}#remote_op: aten::add")
    assert nested.node_id == rpc.get_worker_info(TO).id
    assert add.node_id == rpc.get_worker_info("worker2").id


@each_profile
def test_profiler_rpc_record_shapes(profile: Any) -> None:
    for shown in (True, False):
        with profile(record_shapes=shown) as prof:
            rpc.rpc_sync(TO, torch.add, args=(X, X))
        [add] = named(prof, f"rpc_sync#{ADD}#remote_op: aten::add")
        assert add.input_shapes == ([[3, 2], [3, 2], []] if shown else [])


@each_profile
def test_profiler_rpc_memory(profile: Any) -> None:
    for shown in (True, False):
        with profile(profile_memory=shown) as prof:
            rpc.rpc_sync(TO, torch.add, args=(X, X))
        [add] = named(prof, f"rpc_sync#{ADD}#remote_op: aten::add")
        assert add.cpu_memory_usage == (X.nbytes if shown else 0)


def test_rpc_profiling_remote_record_function() -> None:
    with profiler.profile() as prof:
        rpc.rpc_sync(TO, s.in_a_block, args=(X,))
    block = "rpc_sync#in_a_block(worker0 -> worker1)#remote_op: a block"
    [event] = named(prof, block)
    assert "aten::add" in {child.name.rpartition("#remote_op: ")[2] for child in event.cpu_children}


@pytest.mark.parametrize("profile", PROFILES[1:], ids=["autograd", "torch.profiler"])
def test_profiler_export_trace(profile: Any, tmp_path: Path) -> None:
    with profile() as prof:
        futures = [rpc.rpc_async(TO, torch.add, args=(X, X)) for _ in range(3)]
        rpc.wait_all(futures)
    file = tmp_path / "trace.json"
    prof.export_chrome_trace(str(file))
    trace = json.loads(file.read_text())
    entries = [each for each in trace["traceEvents"] if each.get("ph") == "X"]
    calls = [each for each in entries if each["name"] == f"rpc_async#{ADD}"]
    added = [each for each in entries if each["args"].get("name") == f"rpc_async#{ADD}#remote_op: aten::add"]
    assert len(calls) == len(added) == 3
    assert {each["name"] for each in added} == {"aten::add"}
    own = next(each for each in entries if each["name"] == "aten::add" or each["pid"] == calls[0]["pid"])
    assert {each["pid"] for each in calls} == {own["pid"]}
    process = next(e for e in trace["traceEvents"] if e["name"] == "process_name" and e["pid"] == added[0]["pid"])
    assert process["args"] == {"name": TO}
    # Calls that overlap stand in rows of their own.
    rows: dict[int, list[Any]] = {}
    for each in calls:
        rows.setdefault(each["tid"], []).append(each)
    for row in rows.values():
        for before, after in pairwise(row):
            assert before["ts"] + before["dur"] <= after["ts"]


def test_profiler_export_trace_of_the_predecessor(tmp_path: Path) -> None:
    with profiler_legacy.profile() as prof:
        rpc.rpc_sync(TO, torch.add, args=(X, X))
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    found = [each["name"] for each in json.loads((tmp_path / "trace.json").read_text())]
    assert f"rpc_sync#{ADD}#remote_op: aten::add" in found


@each_profile
def test_a_call_that_fails_is_shown(profile: Any) -> None:
    with profile() as prof, pytest.raises(ValueError, match="expected"):
        rpc.rpc_sync(TO, s.raises)
    assert len(named(prof, "rpc_sync#raises(worker0 -> worker1)")) == 1


def test_a_call_whose_answer_comes_after_the_profile_is_not_shown() -> None:
    with profiler.profile() as prof:
        future = rpc.rpc_async(TO, s.wait_for, args=("profiled",))
    rpc.rpc_sync(TO, s.let_go, args=("profiled",))
    future.wait()
    assert [each for each in names(prof) if "wait_for" in each] == []
    with profiler.profile() as prof:
        rpc.rpc_sync(TO, torch.add, args=(X, X))
    assert len([each for each in names(prof) if each.startswith("rpc_") and "#remote_op" not in each]) == 1


def test_methods_backwards_and_values_are_shown() -> None:
    leaf = X.clone().requires_grad_()
    with profiler.profile() as prof, autograd.context() as context_id:
        rref = rpc.remote(TO, torch.mul, args=(leaf, 2))
        total = rref.rpc_sync().sum()
        autograd.backward(context_id, [total])
        assert torch.equal(autograd.get_gradients(context_id)[leaf], torch.full((3, 2), 2.0))
        rref.to_here()
    assert "rpc_sync#sum(worker0 -> worker1)" in names(prof)
    assert "rpc_backward(worker0 -> worker1)" in names(prof)
    assert "rpc_fetch(worker0 -> worker1)" in names(prof)
    assert "torch::distributed::autograd::backward" in names(prof)
    assert any(each.startswith("rpc_backward(worker0 -> worker1)#remote_op: MulBackward0") for each in names(prof))


def test_a_thread_without_a_profiler_is_not_shown() -> None:
    with profiler.profile() as prof:
        other = threading.Thread(target=rpc.rpc_sync, args=(TO, torch.add), kwargs={"args": (X, X)})
        other.start()
        other.join(20)
    assert [each for each in names(prof) if each.startswith("rpc_")] == []


def test_each_thread_has_a_profile_of_its_own() -> None:
    found: dict[str, list[str]] = {}

    def work(function: Any) -> None:
        with profiler_legacy.profile() as prof:
            rpc.rpc_sync(TO, function, args=(X, X))
        found[function.__name__] = names(prof)

    threads = [threading.Thread(target=work, args=(function,)) for function in (torch.add, torch.sub)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for function in ("add", "sub"):
        calls = [each for each in found[function] if each.startswith("rpc_") and "#remote_op" not in each]
        assert calls == [f"rpc_sync#torch.{function}(worker0 -> worker1)"]
        assert f"{calls[0]}#remote_op: aten::{function}" in found[function]


def test_a_call_of_this_process_is_shown() -> None:
    with profiler.profile() as prof:
        rpc.rpc_sync("worker0", torch.add, args=(X, X))
    assert len(named(prof, "rpc_sync#torch.add(worker0 -> worker0)#remote_op: aten::add")) == 1


def events(prof: Any) -> list[FunctionEvent]:
    found = prof.events() if hasattr(prof, "events") else prof.function_events
    return list(found)


def names(prof: Any) -> list[str]:
    return [event.name for event in events(prof)]


def named(prof: Any, name: str) -> list[FunctionEvent]:
    return [event for event in events(prof) if event.name == name]
