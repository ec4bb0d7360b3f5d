"""Calls of functions on members, under the names that torch's own suite gives these situations."""

from __future__ import annotations

import threading

import pytest
import torch

from ps_wire.errors import DeadlineExceededError, InvalidArgumentError, NotAllowedError, RemoteError, TooLargeError
from tests import half_marked
from tests.rpc import raising
from tests.rpc import situations as s
from tests.rpc.references import eventually
from trainer_client import rpc

TO = "worker1"
SPARSE = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 2.0]]).to_sparse()


def test_self_add() -> None:
    assert torch.equal(rpc.rpc_sync("worker0", torch.add, args=(torch.ones(2, 2), 1)), torch.full((2, 2), 2.0))
    assert rpc.rpc_async("worker0", s.my_add, args=(2, 3)).wait() == 5


def test_send_to_rank() -> None:
    info = rpc.get_worker_info(TO)
    for to in (TO, info, info.id):
        assert torch.equal(rpc.rpc_sync(to, torch.add, args=(torch.ones(2), 1)), torch.full((2,), 2.0))
        assert torch.equal(rpc.rpc_async(to, torch.add, args=(torch.ones(2), 1)).wait(), torch.full((2,), 2.0))
        assert torch.equal(rpc.remote(to, torch.add, args=(torch.ones(2), 1)).to_here(), torch.full((2,), 2.0))
    for call in (rpc.rpc_sync, rpc.rpc_async, rpc.remote):
        with pytest.raises(InvalidArgumentError, match="by name, number or WorkerInfo, not by a list"):
            call([TO], torch.add, args=(torch.ones(2), 1))
        with pytest.raises(RuntimeError, match="unknown member 17"):
            call(17, torch.add, args=(torch.ones(2), 1))


def test_send_to_rank_sparse() -> None:
    for to in (TO, "worker0"):
        assert torch.equal(rpc.rpc_sync(to, torch.add, args=(SPARSE, SPARSE)).to_dense(), SPARSE.to_dense() * 2)


def test_add() -> None:
    assert torch.equal(rpc.rpc_sync(TO, torch.add, args=(torch.ones(3, 2), torch.ones(3, 2))), torch.full((3, 2), 2.0))


def test_int_callee() -> None:
    number = rpc.get_worker_info("worker2").id
    assert torch.equal(rpc.rpc_sync(number, torch.add, args=(torch.ones(2), 1)), torch.full((2,), 2.0))


def test_add_with_id() -> None:
    info = rpc.get_worker_info("worker2")
    assert torch.equal(rpc.rpc_sync(info, torch.add, args=(torch.ones(2), torch.ones(2))), torch.full((2,), 2.0))


def test_scalar_add() -> None:
    assert torch.equal(rpc.rpc_sync(TO, torch.add, args=(torch.ones(3), 4)), torch.full((3,), 5.0))


def test_async_add() -> None:
    assert torch.equal(rpc.rpc_async(TO, torch.add, args=(torch.ones(3), 4)).wait(), torch.full((3,), 5.0))


def test_nonzero() -> None:
    x = torch.ones(4, 4)
    x[1, 2] = 0
    assert torch.equal(rpc.rpc_sync(TO, torch.nonzero, args=(x,)), x.nonzero())


def test_multi_rpc() -> None:
    for n in range(20):
        assert torch.equal(rpc.rpc_sync(TO, torch.add, args=(torch.ones(n), torch.ones(n))), torch.full((n,), 2.0))


def test_multi_rpc_sparse() -> None:
    for factor in range(20):
        result = rpc.rpc_sync(TO, torch.mul, args=(SPARSE, factor))
        assert torch.equal(result.to_dense(), SPARSE.to_dense() * factor)


def test_expected_src() -> None:
    # Members are told apart by name: the same function gives another answer on each.
    assert [rpc.rpc_sync(f"worker{n}", s.my_name) for n in range(4)] == [f"worker{n}" for n in range(4)]


def test_py_built_in() -> None:
    for function, args in (
        (min, (3, 1, 2)),
        (max, ([3, 1],)),
        (len, ("text",)),
        (sum, ([torch.ones(2), SPARSE.to_dense()[0, :2]],)),
    ):
        assert torch.equal(torch.as_tensor(rpc.rpc_sync(TO, function, args=args)), torch.as_tensor(function(*args)))
    assert rpc.rpc_async(TO, sorted, args=([2, 1],), kwargs={"reverse": True}).wait() == [2, 1]
    assert rpc.remote(TO, abs, args=(-3,)).to_here() == 3
    for function, args in ((eval, ("1 + 1",)), (__import__, ("os",)), (open, ("/etc/passwd",)), (getattr, ("x", "y"))):
        with pytest.raises(NotAllowedError, match="is not on this owner's allow-list"):
            rpc.rpc_sync(TO, function, args=args)


def test_what_a_member_does_not_allow_is_said_to_go_into_its_allow() -> None:
    for function in (half_marked.not_remote, half_marked.Derived):
        with pytest.raises(
            NotAllowedError, match=r"@remote in the program of that member, .* init_rpc\(…, allow=\[…\]"
        ):
            rpc.rpc_sync(TO, function)


def test_linear_algebra() -> None:
    matrix = torch.eye(3) * 4
    for function in (torch.linalg.norm, torch.linalg.inv, torch.linalg.cholesky, torch.linalg.det, torch.det):
        assert torch.equal(rpc.rpc_sync(TO, function, args=(matrix,)), function(matrix))
    with pytest.raises(NotAllowedError, match=r"torch\.linalg\.householder_product"):
        rpc.rpc_sync(TO, torch.linalg.householder_product, args=(matrix, matrix[0]))


def test_op_with_invalid_args() -> None:
    with pytest.raises(RuntimeError, match="torch operator invoked from Python failed to match any schema") as raised:
        rpc.rpc_sync(TO, torch.add, args=())
    assert isinstance(raised.value, TypeError)


NOT_ROW_MAJOR = {
    "transposed": torch.rand(3, 4).t(),
    "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "narrow": torch.rand(5, 5).narrow(1, 2, 2),
    "large": torch.rand(300, 200).t(),
    "large and narrow": torch.rand(300, 200)[:, :150],
}


@pytest.mark.parametrize("name", NOT_ROW_MAJOR)
def test_non_cont_tensors(name: str) -> None:
    tensor = NOT_ROW_MAJOR[name]
    kept = rpc.remote(TO, raising.same, args=(tensor,))
    for arrived in (rpc.rpc_sync(TO, raising.same, args=(tensor,)), kept.to_here()):
        assert torch.equal(arrived, tensor) and arrived.stride() == tensor.stride()
    for to in (TO, "worker0"):
        assert rpc.rpc_sync(to, torch.Tensor.stride, args=(tensor,)) == tensor.stride()


def test_an_expanded_tensor_arrives_whole() -> None:
    tensor = torch.rand(3, 1).expand(3, 4)
    arrived = rpc.rpc_sync(TO, raising.same, args=(tensor,))
    assert torch.equal(arrived, tensor) and arrived.is_contiguous()
    assert torch.equal(arrived.add_(1), tensor + 1)


def test_py_user_defined() -> None:
    assert rpc.rpc_sync(TO, s.my_add, kwargs={"x": 2, "y": 5}) == 7


def test_py_class_constructor() -> None:
    parcel = rpc.rpc_sync(TO, s.Parcel, args=(torch.ones(2),), kwargs={"label": "a"})
    assert type(parcel) is s.Parcel and parcel.label == "a" and torch.equal(parcel.tensor, torch.ones(2))


def test_py_class_instance_method() -> None:
    assert torch.equal(rpc.rpc_sync(TO, s.Parcel(torch.ones(2)).doubled), torch.full((2,), 2.0))


def test_py_class_method() -> None:
    assert rpc.rpc_sync(TO, s.Keeper.by_class, args=(3,)) == "Keeper 3"


def test_py_class_static_method() -> None:
    assert rpc.rpc_sync(TO, s.Keeper.static, args=(3,)) == 4


def test_py_multi_async_call() -> None:
    futures = [rpc.rpc_async(f"worker{n}", s.Keeper.static, args=(n,)) for n in (1, 2, 3)]
    assert [future.wait() for future in futures] == [2, 3, 4]


def test_py_no_return_result() -> None:
    assert rpc.rpc_sync(TO, s.nothing) is None


def test_py_tensors() -> None:
    x, y = torch.rand(3, 3), torch.rand(3, 3)
    assert torch.equal(rpc.rpc_sync(TO, s.my_add, args=(x, y)), x + y)


def test_py_tensors_multi_async_call() -> None:
    futures = [rpc.rpc_async(TO, s.my_add, args=(torch.ones(n, n), torch.ones(n, n))) for n in range(50)]
    for n, future in enumerate(futures):
        assert torch.equal(future.wait(), torch.full((n, n), 2.0))


def test_py_tensors_in_container() -> None:
    items, extra = [torch.ones(2), torch.ones(2)], {"a": torch.ones(1), 3: [True, None]}
    result = rpc.rpc_sync(TO, s.in_container, args=(items, extra))
    assert torch.equal(result["sum"], torch.full((2,), 2.0)) and result["count"] == 2
    assert torch.equal(result["extra"]["a"], torch.ones(1)) and result["extra"][3] == [True, None]


def test_py_sparse_tensors_in_container() -> None:
    result = rpc.rpc_sync(TO, s.in_container, args=([SPARSE, SPARSE], {"a": SPARSE}))
    assert torch.equal(result["sum"].to_dense(), SPARSE.to_dense() * 2)
    assert result["extra"]["a"].is_sparse


def test_py_nested_pickle() -> None:
    # Nothing is pickled: what is nested are values of registered classes.
    sent = s.Pair(s.Parcel(torch.ones(2), "inner"), [s.Pair(1, None)])
    result = rpc.rpc_sync(TO, s.Pair, args=(sent, {"again": sent}))
    assert type(result.left) is s.Pair and result.left.left.label == "inner"
    assert result.right["again"].right == [s.Pair(1, None)]


def test_py_function_exception() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        rpc.rpc_sync(TO, s.nothing, args=(10,))


def test_py_raise_in_user_func() -> None:
    for call in (lambda: rpc.rpc_sync(TO, s.raises), lambda: rpc.rpc_async(TO, s.raises).wait()):
        with pytest.raises(ValueError, match="expected") as raised:
            call()
        assert isinstance(raised.value, RemoteError) and "in raises" in raised.value.remote_traceback


def test_a_member_logs_what_its_functions_raise(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="expected"):
        rpc.rpc_sync("worker0", s.raises)
    (record,) = (each for each in caplog.records if each.name.startswith("ps_service"))
    assert record.levelname == "WARNING" and "in raises" in vars(record)["traceback"]
    text = "on worker0 tests.rpc.situations.raises raised builtins.ValueError: expected, called by trainer "
    assert record.getMessage().startswith(text)
    with pytest.raises(NotAllowedError):  # this is the caller's mistake
        rpc.rpc_sync("worker0", eval, args=("1",))
    assert len(caplog.records) == 1


def test_py_raise_in_user_func_escaped_str() -> None:
    text = "a 'quoted' \"text\"\n with \\ and ü"
    with pytest.raises(ValueError) as raised:
        rpc.rpc_sync(TO, s.raises, args=(text,))
    assert isinstance(raised.value, RemoteError) and raised.value.remote_message == text


def test_nested_rpc() -> None:
    assert torch.equal(
        rpc.rpc_sync(TO, s.nested_add, args=("worker2", torch.ones(2), torch.ones(2))), torch.full((2,), 2.0)
    )
    assert torch.equal(
        rpc.rpc_sync(TO, s.nested_add, args=("worker0", torch.ones(2), torch.ones(2))), torch.full((2,), 2.0)
    )


def test_nested_rpc_sparse() -> None:
    assert rpc.rpc_sync(TO, s.nested_add, args=("worker2", SPARSE, SPARSE)).is_sparse


def test_stress_light_rpc() -> None:
    futures = [rpc.rpc_async(f"worker{n % 4}", s.nothing) for n in range(400)]
    assert rpc.wait_all(futures, timeout=30) == [None] * 400


def test_stress_heavy_rpc() -> None:
    futures = [rpc.rpc_async(f"worker{n % 4}", s.many_loops, args=(torch.ones(50, 50), 20)) for n in range(60)]
    expected = s.many_loops(torch.ones(50, 50), 20)
    assert all(torch.equal(result, expected) for result in rpc.wait_all(futures, timeout=30))


def test_stress_heavy_rpc_sparse() -> None:
    futures = [rpc.rpc_async(f"worker{n % 4}", torch.mul, args=(SPARSE, 2.0)) for n in range(60)]
    assert all(torch.equal(result.to_dense(), SPARSE.to_dense() * 2) for result in rpc.wait_all(futures, timeout=30))


def test_multi_layer_nested_async_rpc() -> None:
    assert rpc.rpc_async(TO, s.nested_async, args=("worker2", 20)).wait() == 20


def test_tensor_view_as_return_value() -> None:
    x = torch.arange(6.0)
    assert torch.equal(rpc.rpc_sync(TO, torch.reshape, args=(x, (2, 3))), x.view(2, 3))
    assert [part.tolist() for part in rpc.rpc_sync(TO, s.split_in_three, args=(x,))] == [[0, 1], [2, 3], [4, 5]]


def test_function_not_on_callee() -> None:
    with pytest.raises(NotAllowedError, match=r"decorated with @remote"):
        rpc.rpc_sync(TO, "tests.rpc.situations.only_here")
    with pytest.raises(InvalidArgumentError, match="a lambda"):
        rpc.rpc_sync(TO, lambda: 1)


def test_wrong_types() -> None:
    with pytest.raises(TypeError, match="func must be a function"):
        rpc.rpc_sync(TO, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a time-out is a number of seconds, not a str"):
        rpc.rpc_sync(TO, s.nothing, timeout="soon")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"threading\.Event cannot be sent"):
        rpc.rpc_sync(TO, s.my_add, args=(threading.Event(), 1))


def test_rpc_timeouts() -> None:
    for call in (
        lambda: rpc.rpc_sync(TO, s.wait_for, args=("rpc_timeouts",), timeout=0.05),
        lambda: rpc.rpc_async(TO, s.wait_for, args=("rpc_timeouts",), timeout=0.05).wait(),
        lambda: rpc.remote(TO, s.wait_for, args=("rpc_timeouts",), timeout=0.05).to_here(),
    ):
        with pytest.raises(DeadlineExceededError, match=r"within 0\.05 s"):
            call()
    rpc.rpc_sync(TO, s.let_go, args=("rpc_timeouts",))
    assert rpc.rpc_sync(TO, s.wait_for, args=("rpc_timeouts",), timeout=0) is True


def test_set_and_get_default_rpc_timeout() -> None:
    before = rpc.get_rpc_timeout()
    try:
        rpc.set_rpc_timeout(12.5)
        assert rpc.get_rpc_timeout() == 12.5
    finally:
        rpc.set_rpc_timeout(before)
    assert before == 30.0


def test_default_timeout_used() -> None:
    before = rpc.get_rpc_timeout()
    try:
        rpc.set_rpc_timeout(0.05)
        with pytest.raises(DeadlineExceededError, match=r"within 0\.05 s"):
            rpc.rpc_sync(TO, s.wait_for, args=("default_timeout",))
    finally:
        rpc.set_rpc_timeout(before)
        rpc.rpc_sync(TO, s.let_go, args=("default_timeout",))


def test_with_a_short_default_timeout_a_call_to_a_number_fails_when_it_is_awaited() -> None:
    number, before = rpc.get_worker_info(TO).id, rpc.get_rpc_timeout()
    try:
        rpc.set_rpc_timeout(1e-6)
        late = rpc.rpc_async(number, s.wait_for, args=("short_timeout",))
        with pytest.raises(DeadlineExceededError):
            late.wait()
        rpc.set_rpc_timeout(0)
        assert rpc.rpc_async(number, s.my_add, args=(1, 2)).wait() == 3
    finally:
        rpc.set_rpc_timeout(before)
        rpc.rpc_sync(TO, s.let_go, args=("short_timeout",))


def test_the_deadline_of_a_call_holds_for_those_it_makes() -> None:
    assert rpc.rpc_sync(TO, s.seconds_of_a_nested_call, timeout=20) <= 20
    assert rpc.rpc_sync(TO, s.seconds_of_a_nested_call, timeout=0) == pytest.approx(60, abs=1)
    rpc.rpc_sync(TO, s.let_go, args=("never mind",))


def test_calls_that_call_each_other_do_not_use_up_the_threads() -> None:
    before = rpc.rpc_sync(TO, s.threads)
    futures = [rpc.rpc_async(TO, s.nested_async, args=("worker2", 20), timeout=30) for _ in range(20)]
    assert rpc.wait_all(futures) == [20] * 20
    # Those that helped out go again, each a moment after it has answered.
    assert eventually(lambda: rpc.rpc_sync(TO, s.threads) <= before + 8)


def test_code_that_calls_itself_for_ever_is_stopped() -> None:
    with pytest.raises(TooLargeError, match="more than 64 requests are nested in each other"):
        rpc.rpc_sync(TO, s.for_ever)


def test_nested_requests_end_with_their_call() -> None:
    # One whose time is over before it has begun makes no request: then another gets more time.
    for event, seconds in (("ends with it", 0.2), ("ends with it later", 2.0), ("ends with it at last", 20.0)):
        with pytest.raises(DeadlineExceededError):
            rpc.rpc_sync(TO, s.nested_wait, args=("worker2", event), timeout=seconds)
        if rpc.rpc_sync(TO, s.has_called, args=(event,)):
            break
    assert rpc.rpc_sync(TO, s.how_it_ended, args=(event,)) in ("DeadlineExceededError", "CancelledCallError")
    rpc.rpc_sync("worker2", s.let_go, args=(event,))
