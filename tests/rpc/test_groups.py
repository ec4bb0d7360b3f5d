"""Tests joining, waiting and leaving in groups, under the names of torch's own suite."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed.rpc

from ps_wire.errors import DeadlineExceededError, InvalidArgumentError
from tests.forking.process import Forking
from tests.rpc import situations as s
from tests.rpc.in_turn import Run, runner
from trainer_client import rpc
from trainer_client.rpc.current import agent


def test_worker_id() -> None:
    assert rpc.get_worker_info() == rpc.get_worker_info("worker0") == rpc.WorkerInfo("worker0", 0)
    assert {rpc.get_worker_info(f"worker{n}").id for n in range(4)} == {0, 1, 2, 3}
    with pytest.raises(RuntimeError, match=r"unknown member 'worker17'.*its members are: worker0"):
        rpc.get_worker_info("worker17")


def test_get_worker_infos() -> None:
    members = agent().client.status("worker0").wait().members
    numbers = {member.name: member.id for member in members}
    told = {each.name: each.id for each in rpc.get_worker_infos()}
    # Not only these: a member that an earlier test has killed is there until its lease ends.
    for worker in (f"worker{n}" for n in range(4)):
        assert rpc.rpc_sync(worker, s.whoami) == numbers[worker] == told[worker]


def test_the_address_is_where_others_find_this_process() -> None:
    assert rpc.address() == agent().server.address == rpc.rpc_sync("worker1", s.directory_of)


def test_worker_info_pickle() -> None:
    info = rpc.get_worker_info("worker2")
    assert rpc.rpc_sync("worker1", s.Pair, args=(info, 1)).left == info


def test_init_rpc_twice() -> None:
    with pytest.raises(RuntimeError, match="in a group already, as 'worker0'"):
        rpc.init_rpc("another")


def test_reinit() -> None:
    before = rpc.get_worker_info()
    with pytest.raises(RuntimeError, match="in a group already, as 'worker0'"):
        rpc.init_rpc("worker0")
    assert rpc.get_worker_info() == before
    assert rpc.rpc_sync("worker1", s.my_add, args=(1, 2)) == 3


def test_invalid_names() -> None:
    wrong = {"abc*": "must match", " ": "must match", "a b": "must match", "": "must be non-empty"}
    for name, text in (wrong | {"x" * 128: "must be shorter than 128"}).items():
        for way in (rpc.init_rpc, lambda name: rpc.WorkerInfo(name, 0)):
            with pytest.raises(RuntimeError, match=f"Worker name {text}") as raised:
                way(name)
            assert isinstance(raised.value, ValueError)
    assert rpc.WorkerInfo("a.b-c:d_1", 3).name == "a.b-c:d_1"


def test_invalid_numbers_of_workers() -> None:
    with pytest.raises(InvalidArgumentError, match="not negative, unlike -1"):
        rpc.WorkerInfo("worker0", -1)
    with pytest.raises(InvalidArgumentError, match="a number, not a str"):
        rpc.WorkerInfo("worker0", "0")  # type: ignore[arg-type]
    for rank in (-1, 1 << 70, 40):
        for way in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
            with pytest.raises(RuntimeError, match=f"unknown member {rank}"):
                way(rank, torch.add, args=(1, 1))
    for who in (1.5, None, True):
        with pytest.raises(ValueError, match="by name, number or WorkerInfo"):
            rpc.rpc_sync(who, torch.add, args=(1, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize(("rank", "size"), [(3, 3), (-1, 3), (-2, None), (7, 2), (-5, 1)])
def test_an_invalid_rank_is_a_clear_error(rank: int, size: int | None) -> None:
    with pytest.raises(InvalidArgumentError, match=f"rank {rank} is "):
        rpc.init_rpc("x", rank=rank, world_size=size)


def test_wrong_types() -> None:
    with pytest.raises(TypeError, match="Argument backend must be a member of BackendType"):
        rpc.init_rpc("x", backend="TENSORPIPE")
    with pytest.raises(TypeError, match="Argument rpc_backend_options must be an instance of RpcBackendOptions"):
        rpc.init_rpc("x", rpc_backend_options={"init_method": "env://"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rank is a number, not a str"):
        rpc.init_rpc("x", rank="0")  # type: ignore[arg-type]


def test_mismatched_type_for_options() -> None:
    for backend in (rpc.BackendType.TENSORPIPE, torch.distributed.rpc.BackendType.TENSORPIPE):
        with pytest.raises(TypeError, match="`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`"):
            rpc.init_rpc("x", backend, rpc_backend_options=rpc.RpcBackendOptions())
        with pytest.raises(RuntimeError, match="already, as 'worker0'"):
            rpc.init_rpc("x", backend, rpc_backend_options=rpc.TensorPipeRpcBackendOptions())


def meet() -> None:
    """Two members of the group pass a barrier."""
    futures = [rpc.rpc_async(f"worker{n}", s.barrier_of, args=(["worker1", "worker2"],)) for n in (1, 2)]
    assert rpc.wait_all(futures, timeout=20) == [None, None]


def test_rpc_barrier_subset() -> None:
    meet()


def test_rpc_barrier_partial_subset() -> None:
    with pytest.raises(DeadlineExceededError, match=r"barrier: worker2 did not come within 0\.1 s"):
        rpc.rpc_sync("worker1", s.barrier_of, args=(["worker1", "worker2"], 0.1))
    with pytest.raises(DeadlineExceededError, match=r"barrier: worker1 did not come"):
        rpc.rpc_sync("worker2", s.barrier_of, args=(["worker1", "worker2"], 0.1))
    # The members are still in step.
    meet()


def test_rpc_barrier_all() -> None:
    names = [f"worker{n}" for n in range(4)]
    futures = [rpc.rpc_async(name, s.barrier_of, args=(names,)) for name in names[1:]]
    rpc.barrier(names, timeout=20)
    rpc.wait_all(futures, timeout=20)
    with pytest.raises(InvalidArgumentError, match="'worker0', is not among the given names: worker1"):
        rpc.barrier(["worker1"])
    with pytest.raises(ValueError, match="the group is open"):
        rpc.barrier()


def test_rpc_barrier_multithreaded() -> None:
    names = ["worker0", "worker3"]
    for _ in range(3):
        other = rpc.rpc_async("worker3", s.barrier_of, args=(names,))
        thread = threading.Thread(target=rpc.barrier, args=(names, 20.0))
        thread.start()
        thread.join(20)
        other.wait(20)
        assert not thread.is_alive()


def test_all_gather() -> None:
    names = [f"worker{n}" for n in range(4)]
    futures = [rpc.rpc_async(name, s.gather_of, args=(name.upper(), names)) for name in names[1:]]
    found = rpc.all_gather("WORKER0", names, timeout=20)
    assert found == {name: name.upper() for name in names}
    assert rpc.wait_all(futures) == [found] * 3


def test_all_gather_timeout() -> None:
    with pytest.raises(DeadlineExceededError, match=r"all_gather: worker1, worker2 did not come within 0\.1 s"):
        rpc.all_gather(1, ["worker0", "worker1", "worker2"], timeout=0.1)


def test_tensorpipe_options_throw_on_timedelta_timeout() -> None:
    from datetime import timedelta

    with pytest.raises(TypeError, match=r"incompatible constructor arguments: .* seconds, not a timedelta"):
        rpc.TensorPipeRpcBackendOptions(rpc_timeout=timedelta(seconds=3))  # type: ignore[arg-type]


# In processes of their own


ALONE = ("alone", "alone_sparse", "threads", "timeout", "no_group")
IN_TWOS = (
    *("ring_twice_sparse", "after_shutdown", "result_after_shutdown", "rref_after_shutdown"),
    *("local_shutdown", "local_shutdown_with_rpc"),
    *("shutdown_timeout", "shutdown_while_called", "duplicate", "late", "before_the_directory"),
    *("process_group first", "process_group second"),
)
IN_THREES = ("ring", "ring_sparse", "ring_twice", "uneven", "open_group", "without_rank")


@pytest.fixture(scope="module")
def run(forking: Forking) -> Run:
    return runner(forking, "tests.rpc.groups", (1, ALONE), (2, IN_TWOS), (3, IN_THREES))


def test_world_size_one(run: Run) -> None:
    assert run("alone") == ["0 1 [2.0, 2.0]"]


def test_world_size_one_sparse(run: Run) -> None:
    assert run("alone_sparse") == ["0 1 [2.0, 2.0]"]


def test_wait_all_workers_dense(run: Run) -> None:
    assert run("ring", 3) == [f"{rank} 3 [2.0, 2.0]" for rank in range(3)]


def test_wait_all_workers_sparse(run: Run) -> None:
    assert run("ring_sparse", 3) == [f"{rank} 3 [2.0, 2.0]" for rank in range(3)]


def test_wait_all_workers_twice_dense(run: Run) -> None:
    assert run("ring_twice", 3) == [f"{rank} 3 [2.0, 2.0]" for rank in range(3) for _ in range(2)]


def test_wait_all_workers_twice_sparse(run: Run) -> None:
    assert run("ring_twice_sparse", 2) == [f"{rank} 2 [2.0, 2.0]" for rank in range(2) for _ in range(2)]


def test_graceful_shutdown_with_uneven_workload(run: Run) -> None:
    assert run("uneven", 3) == ["0 done", "1 done", "2 done"]


def test_shutdown_followed_by_rpc(run: Run) -> None:
    assert run("after_shutdown", 2) == ["0 in no group", "1 in no group"]


def test_a_result_is_there_after_shutdown(run: Run) -> None:
    assert run("result_after_shutdown", 2) == ["0 [0, 1] True", "1 [0, 1] True"]


def test_use_rref_after_shutdown(run: Run) -> None:
    assert run("rref_after_shutdown", 2) == ["0 in no group", "1 in no group"]


def test_pg_init_no_rpc_init(run: Run) -> None:
    assert run("no_group") == ["0 in no group"]


def test_local_shutdown(run: Run) -> None:
    assert run("local_shutdown", 2) == ["0 left", "1 left"]


def test_local_shutdown_with_rpc(run: Run) -> None:
    assert run("local_shutdown_with_rpc", 2) == ["0 left", "1 left"]


def test_wait_all_workers_timeout(run: Run) -> None:
    assert run("shutdown_timeout", 2) == ["0 shutdown: worker1 did not come", "1 left"]


def test_leaving_reports_a_call_that_does_not_end(run: Run) -> None:
    assert run("shutdown_while_called", 2) == [
        "0 shutdown: calls of other members are still running here",
        "1 heard of it",
    ]


def test_duplicate_name(run: Run) -> None:
    assert run("duplicate", 2) == ["0 alone", "1 another name is needed"]


def test_dynamic_rpc_init_rpc(run: Run) -> None:
    assert run("open_group", 3) == ["0 3 members", "1 5", "2 5"]


def test_dynamic_rpc_new_rank_can_communicated_with_existing_rank(run: Run) -> None:
    assert run("late", 2) == ["0 early called late: 3", "1 late called early: 3"]


def test_dynamic_rpc_existing_rank_can_communicate_with_new_rank(run: Run) -> None:
    assert run("late", 2)[0] == "0 early called late: 3"


def test_a_member_may_come_before_the_directory(run: Run) -> None:
    assert run("before_the_directory", 2) == ["0 3", "1 3"]


def test_dynamic_rpc_init_rpc_without_rank(run: Run) -> None:
    assert run("without_rank", 3) == ["0 ids [0, 1, 2]"]


def test_set_and_get_num_worker_threads(run: Run) -> None:
    assert run("threads") == ["0 3"]


def test_tensorpipe_set_default_timeout(run: Run) -> None:
    assert run("timeout") == ["0 12.5"]


def test_init_pg_then_rpc(run: Run) -> None:
    assert run("process_group", 2, "first") == ["0 2.0 3", "1 2.0 3"]


def test_init_rpc_then_pg(run: Run) -> None:
    assert run("process_group", 2, "second") == ["0 2.0 3", "1 2.0 3"]
