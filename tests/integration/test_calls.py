"""Tests calls: values, concurrency, deadlines, cancellation, plain threads and exceptions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_wire.limits import MIB, Limits
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame, Request
from ps_wire.v1.operations_pb2 import CallRequest
from tests.integration.support import AFFINE, COUNTER, GATE, MODELS, HandMade, in_memory, serving, until
from tests.values import same


@pytest.fixture
async def roomy() -> AsyncIterator[Server]:
    """An owner with enough threads that some may be blocked."""
    async with serving(threads=6) as server:
        yield server


@pytest.fixture
async def trainer(roomy: Server) -> AsyncIterator[tc.Client]:
    async with tc.connect(roomy.address) as client:
        yield client


SCALARS: list[Any] = [
    *(None, True, False, 0, -1, 1 << 63, -(1 << 200), 0.5, float("inf"), -0.0, "", "grüße ☀", b"", b"\x00\xff"),
    *(torch.float32, torch.bool, torch.device("cpu"), torch.device("cuda:1"), slice(1, None, -2), slice(None)),
]

NESTED: list[Any] = [
    [],
    (),
    {},
    [1, (2.0, [None, {"k": (b"x",)}])],
    {"a": {"b": [{"c": torch.ones(2)}]}, 3: (True,), (1, "x"): -1.5, None: torch.tensor(7)},
    [torch.empty(0, 3), torch.tensor(2.5), torch.arange(24).view(4, 6)[:, ::2], torch.ones(2, 3).t()],
    {"sparse": torch.sparse_coo_tensor(torch.tensor([[0, 2, 2]]), torch.ones(3, 2), (4, 2), check_invariants=True)},
    [torch.ones(3, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.complex64), torch.tensor([True, False])],
    [torch.zeros(5, dtype=torch.uint16), torch.ones(1, dtype=torch.float8_e4m3fn)],
]


@pytest.mark.parametrize("value", [*SCALARS, *NESTED], ids=lambda value: repr(value)[:40])
async def test_values_go_there_and_come_back(shared: tc.RemoteObject, value: Any) -> None:
    for arguments, named in [((value,), {}), ((1, value), {}), ((), {"key": value}), ((value,), {"also": [value]})]:
        result = await shared.echo(*arguments, **named)
        expected = (arguments, named) if named else (arguments[0] if len(arguments) == 1 else arguments)
        assert same(result, expected)


@pytest.fixture
async def shared(ps: tc.Client) -> tc.RemoteObject:
    return await ps.create(COUNTER)


async def test_similar_values_arrive_as_plain_ones(shared: tc.RemoteObject) -> None:
    given = [
        np.int64(3),
        np.float32(0.5),
        np.bool_(True),
        bytearray(b"x"),
        torch.Size([2, 3]),
        torch.nn.Parameter(torch.ones(2)),
    ]
    result = await shared.echo(given)
    assert [type(each) for each in result] == [int, float, bool, bytes, tuple, torch.Tensor]
    assert same(result, [3, 0.5, True, b"x", (2, 3), torch.ones(2)])


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, Exception("x")], ids=lambda value: str(type(value)))
async def test_other_values_are_refused_before_they_travel(shared: tc.RemoteObject, value: Any) -> None:
    with pytest.raises(
        tc.errors.InvalidArgumentError, match="cannot be sent; what travels is None, bool, int, float, str"
    ):
        shared.echo([value])


async def test_a_result_that_cannot_travel_is_said_to_be_so(ps: tc.Client) -> None:
    async with serving() as owner, tc.connect(owner.address) as trainer:
        moody = await trainer.module(f"{MODELS}.Moody", 2)
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"builtins\.object cannot be sent"):
            await moody(torch.ones(2), mood="object")


async def test_keyword_arguments_and_results_in_containers(ps: tc.Client) -> None:
    net = await ps.module(AFFINE, 3, 2, seed=0)
    state = await net.state_dict()
    x = torch.randn(4, 3)
    result = await net.both(x=x, scale=-2.0)
    y = x @ state["weight"] + state["bias"]
    torch.testing.assert_close(result["y"][0], y)
    torch.testing.assert_close(result["y"][1], (y * -2.0).relu())
    assert result["shape"] == (4, 2) and torch.equal(result["argmax"], y.argmax(-1))
    assert not result["y"][0].requires_grad


async def test_many_calls_are_in_flight_at_once_and_each_gets_its_own_answer(shared: tc.RemoteObject) -> None:
    results = await asyncio.gather(*(shared.echo({"i": i, "t": torch.full((i % 5,), i)}) for i in range(256)))
    assert all(same(result, {"i": i, "t": torch.full((i % 5,), i)}) for i, result in enumerate(results))
    assert sorted(await asyncio.gather(*(shared.add() for _ in range(256)))) == list(range(1, 257))


async def test_more_calls_than_may_be_in_flight_wait_their_turn() -> None:
    async with serving(Limits(max_in_flight=8)) as owner, tc.connect(owner.address) as ps:
        counter = await ps.create(COUNTER)
        assert sorted(await asyncio.gather(*(counter.add() for _ in range(100)))) == list(range(1, 101))
        operations = {each.name: each for each in (await ps.status()).operations}
        assert operations["call"].calls == 100 and operations["call"].errors == 0


async def test_a_small_call_does_not_wait_behind_a_large_one(shared: tc.RemoteObject) -> None:
    order: list[str] = []

    async def call(what: str, value: Any) -> None:
        await shared.echo(value)
        order.append(what)

    await asyncio.gather(call("large", torch.zeros(8 << 20)), call("small", 1))
    assert order == ["small", "large"]


async def test_a_call_ends_with_its_deadline_and_the_owner_is_told(roomy: Server, trainer: tc.Client) -> None:
    gate = await trainer.create(GATE)
    try:
        nonblocking = gate.options(timeout=0.05)
        with pytest.raises(tc.errors.DeadlineExceededError, match=r"0\.05 s") as caught:
            await nonblocking.wait()
        assert isinstance(caught.value, TimeoutError)
        status = await until(trainer, lambda status: status.requests_in_flight == 0)
        assert {each.name: each.errors for each in status.operations}["call"] == 1
        # None where it was late before its method began.
        entered = roomy.engine.registry.find(gate.ref).value.inside
        with pytest.raises(tc.errors.DeadlineExceededError):
            await gate.options(timeout=0.0).wait()
        # The handle it was made from keeps its own deadline.
        patient = gate.wait()
        assert await gate.wait_for(entered + 1) > entered
        assert not patient.done()
    finally:
        await gate.open()
    assert await patient == "through"


async def test_the_owner_keeps_deadlines_by_its_own_clock() -> None:
    async with in_memory() as owner, tc.connect(owner.connector()) as ps:
        gate = await ps.create(GATE, name="gate")
        silent = await HandMade.greeted(owner.connector())
        call = CallRequest(target=gate.ref.to_message(), method="wait")
        await silent.send(Frame(number=1, request=Request(timeout_seconds=0.02, call=call)))
        answer = await silent.receive()
        assert (answer.number, answer.reply.error.code) == (1, ErrorCode.ERROR_DEADLINE_EXCEEDED)
        text = "tests.hosted_models.Gate.wait of 'gate' on owner 'ps0' was not finished within 0.02 s"
        assert answer.reply.error.message == f"RPC ran for more than its timeout: {text}"
        assert owner.engine.counters.running == 0
        await gate.open()


async def test_a_default_deadline_belongs_to_the_connection(roomy: Server) -> None:
    async with tc.connect(roomy.address, timeout=0.05) as nonblocking:
        gate = await nonblocking.create(GATE, timeout=None)
        with pytest.raises(tc.errors.DeadlineExceededError):
            await gate.wait()
        await gate.options(timeout=None).open()
        assert await gate.options(timeout=None).wait() == "through"


@pytest.mark.parametrize("how", ["task", "timeout", "pending", "thread"])
async def test_cancelling_reaches_the_owner(roomy: Server, trainer: tc.Client, how: str) -> None:
    gate = await trainer.create(GATE)
    try:
        pending = gate.wait()
        await gate.wait_for(1)
        assert (await trainer.status()).requests_in_flight == 1
        match how:
            case "task":
                task = asyncio.ensure_future(pending)
                await trainer.status()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            case "timeout":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await pending
            case "pending":
                pending.cancel()
            case "thread":
                await asyncio.to_thread(pending.cancel)
        status = await until(trainer, lambda status: status.requests_in_flight == 0)
        assert {each.name: (each.calls, each.errors) for each in status.operations}["call"] == (2, 1)
        with pytest.raises(tc.errors.CancelledCallError, match="the owner may have run it all the same"):
            await pending
        await until(trainer, lambda status: status.kept_answers <= 2)
    finally:
        await gate.open()
    assert roomy.engine.counters.running == 0


async def test_a_call_that_waits_for_its_turn_can_be_cancelled_and_is_never_sent() -> None:
    async with (
        serving(Limits(max_in_flight=1), threads=6) as narrow,
        tc.connect(narrow.address) as crowded,
        tc.connect(narrow.address) as other,
    ):
        gate = await crowded.create(GATE, name="gate")
        first, second, third = gate.wait(), gate.wait(), gate.wait()
        second.cancel()
        opener = await other.attach("gate")
        await opener.wait_for(1)
        await opener.open()
        assert await first == await third == "through"
        assert await opener.wait_for(2) == 2


async def test_awaiting_again_gives_the_same_result(shared: tc.RemoteObject) -> None:
    pending = shared.add(torch.tensor(5))
    first = await pending
    assert await pending is first and pending.wait() is first and pending.done()
    failing = shared.fail("once")
    errors = [await _error(failing) for _ in range(2)]
    assert errors[0] is errors[1]
    together = shared.echo([1])
    results = await asyncio.gather(*(_value(together) for _ in range(5)))
    assert all(result is results[0] for result in results)


async def test_a_plain_thread_waits_while_the_loop_runs(trainer: tc.Client) -> None:
    gate, counter = await trainer.create(GATE), await trainer.create(COUNTER)
    pending = gate.wait()

    def work() -> tuple[str, int, bool]:
        with pytest.raises(tc.errors.DeadlineExceededError, match=r"no answer within 0\.01 s; the call goes on"):
            pending.wait(timeout=0.01)
        gate.open().wait()
        return pending.wait(), counter.add(3).wait(timeout=30), threading.current_thread() is threading.main_thread()

    assert await asyncio.to_thread(work) == ("through", 3, False)


async def test_threads_and_tasks_call_through_one_client_at_once(ps: tc.Client, shared: tc.RemoteObject) -> None:
    def work() -> list[int]:
        return [pending.wait() for pending in [shared.add() for _ in range(20)]]

    by_threads = asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
    by_tasks = asyncio.gather(*(_value(shared.add()) for _ in range(20)))
    seen = [number for numbers in await by_threads for number in numbers] + list(await by_tasks)
    assert sorted(seen) == list(range(1, 101))


async def test_waiting_on_the_loop_itself_is_refused(shared: tc.RemoteObject) -> None:
    pending = shared.add()
    with pytest.raises(RuntimeError, match="would block the event loop that has to bring the answer: use await"):
        pending.wait()
    assert await pending == 1
    assert pending.wait() == 1


async def test_a_pending_result_has_no_truth_value(shared: tc.RemoteObject) -> None:
    pending = shared.get()
    with pytest.raises(TypeError, match=r"await it, or call wait\(\)"):
        bool(pending)
    assert repr(pending) == "<Pending on its way>"
    assert await pending == 0
    assert repr(pending) == "<Pending done>"


async def test_a_remote_exception_says_where_the_hosted_code_raised(shared: tc.RemoteObject) -> None:
    with pytest.raises(tc.errors.RemoteError) as caught:
        await shared.fail("the seventh")
    error = caught.value
    assert (error.remote_type, error.remote_message) == ("builtins.ValueError", "the seventh")
    assert "raise ValueError(message)" in error.remote_traceback
    assert "hosted_models.py" in error.remote_traceback and "in fail" in error.remote_traceback
    for internals in ("ps_service/", "concurrent/", "dispatch.py", "handlers.py", "calling.py", "site-packages"):
        assert internals not in error.remote_traceback
    assert "builtins.ValueError: the seventh" in str(error) and "Original exception on remote side was:" in str(error)


async def test_exceptions_of_modules_constructors_and_wrong_arguments_are_remote_errors(ps: tc.Client) -> None:
    async with serving() as owner, tc.connect(owner.address) as trainer:
        moody = await trainer.module(f"{MODELS}.Moody", 2)
        with pytest.raises(tc.errors.RemoteError) as caught:
            await moody(torch.ones(2), "raise")
        assert caught.value.remote_type == "builtins.KeyError" and "wire_models.py" in caught.value.remote_traceback
        assert "ps_service/" not in caught.value.remote_traceback
        with pytest.raises(tc.errors.RemoteError, match="unexpected keyword argument 'humour'") as caught:
            await moody(torch.ones(2), humour="raise")
        assert caught.value.remote_type == "builtins.TypeError"
        with pytest.raises(tc.errors.RemoteError, match="missing 1 required positional argument: 'size'"):
            await trainer.module(f"{MODELS}.Moody")
        counter = await trainer.create(COUNTER)
        with pytest.raises(
            tc.errors.RemoteError, match="takes from 1 to 2 positional arguments but 3 were given"
        ) as caught:
            await counter.add(1, 2)
        assert "ps_service" not in caught.value.remote_traceback
        with pytest.raises(tc.errors.RemoteError, match="must match the size of tensor b"):
            await moody(torch.ones(3))
        assert torch.equal(await moody(torch.ones(2)), torch.ones(2))


async def test_a_reply_that_fits_no_frame_is_an_error_of_its_own_call() -> None:
    """Not of the stream: the answer would be sent again and again, and never arrive."""
    async with serving() as owner, tc.connect(owner.address) as ps:
        loud = await ps.create(f"{MODELS}.Loud")
        with pytest.raises(tc.errors.TooLargeError, match="bytes besides its tensors"):
            await loud.options(timeout=60).shout(65 * MIB)
        assert await loud.shout(3) == bytes(3)
        with pytest.raises(tc.errors.TooLargeError, match="Send large data as tensors"):
            await loud.shout(b"x" * (65 * MIB))
        assert (await loud.zeros(3)).tolist() == [0.0, 0.0, 0.0]


async def test_a_closed_client_says_so(owner: Server) -> None:
    async with tc.connect(owner.address) as ps:
        counter = await ps.create(COUNTER)
        waiting = counter.add()
    with pytest.raises(tc.errors.ClosedError):
        await waiting
    with pytest.raises(tc.errors.ClosedError, match="this client is closed"):
        await counter.get()
    await ps.close()


async def _value(pending: tc.Pending[Any]) -> Any:
    return await pending


async def _error(pending: tc.Pending[Any]) -> BaseException:
    with pytest.raises(tc.PsError) as caught:
        await pending
    return caught.value


async def test_arrays_of_numpy_arrive_as_arrays(shared: tc.RemoteObject) -> None:
    given = [np.ones(2, np.float32), np.arange(6).reshape(2, 3).T]
    for found, array in zip(await shared.echo(given), given, strict=True):
        assert found.dtype == array.dtype and np.array_equal(found, array)
    with pytest.raises(tc.errors.InvalidArgumentError, match="a numpy array of dtype <U1 cannot be sent"):
        shared.echo(np.array(["x"]))


async def test_calls_of_a_turn_are_sent_in_their_order_also_if_one_is_refused(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 2, 2)
    net.session.requests.window.max_message_bytes = 1000
    later: list[tc.Pending[torch.Tensor]] = []
    refused = net(torch.ones(200, 2))
    refused.on_done(lambda: later.append(net(torch.ones(3, 2))))
    calls: list[Any] = [net(torch.ones(rows, 2)) for rows in (1, 2)]
    await asyncio.gather(*calls)
    with pytest.raises(tc.errors.TooLargeError):
        await refused
    await later[0]
    assert [each.number for each in (*calls, later[0])] == sorted(each.number for each in (*calls, later[0]))
