"""Tests that the gradients of several calls of one owner go in one request."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from ps_wire.errors import RemoteError
from ps_wire.runtime.latency import Latencies, Latency
from tests.trainer_client.scripted_owner import decoded, opened
from tests.trainer_client.scripted_passes import carry_back, give, give_each, leaf, new_context, posted, recorded, short
from tests.waiting import until
from trainer_client.contexts.context import Context
from trainer_client.graph import batch, running_backward
from trainer_client.graph.running_backward import RunningBackward
from trainer_client.session.session import Session


@pytest.fixture(autouse=True)
def all_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local part of every backward is taken for short, however long it takes."""

    class Always(Latency):
        is_short = True

    class Short(Latencies[Any]):
        def of(self, key: Any) -> Latency:
            return Always()

    monkeypatch.setattr(running_backward, "_latencies", Short())


def calls_of(request: Any) -> list[tuple[int, int]]:
    """The calls of a backward request, and the calls whose gradients are added just before."""
    return [(each.call, each.after) for each in (request, *request.more)]


async def test_calls_without_inputs_go_together_the_latest_first() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        outputs = [recorded(context, session, latency=short())[0] for _ in range(3)]
        backward = context.backward([outputs[1].sum(), outputs[2].sum() * 2, outputs[0].sum()])
        frame, _ = await posted(stream)
        request = frame.request.backward
        assert calls_of(request) == [(3, 0), (2, 3), (1, 2)]
        (twice,) = decoded(request.gradients, stream.payload)
        assert twice.tolist() == [2.0, 2.0]
        await give_each(stream, frame.number, (), (), ())
        await backward


async def test_each_call_gets_the_gradients_of_its_own_inputs() -> None:
    async with opened() as (session, stream, _):
        context, a, b = new_context(), leaf(1.0), leaf(2.0)
        outputs = [recorded(context, session, each, latency=short())[0] for each in (a, b)]
        backward = context.backward((outputs[0] + outputs[1]).sum())
        frame, _ = await posted(stream)
        assert calls_of(frame.request.backward) == [(2, 0), (1, 2)]
        await give_each(stream, frame.number, (torch.tensor([5.0]),), (torch.tensor([7.0]),))
        await backward
        assert [gradient_of(context, each) for each in (a, b)] == [[7.0], [5.0]]


async def test_calls_that_become_ready_together_go_together() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        first, second = (recorded(context, session, outputs=[torch.ones(1)], latency=short())[0] for _ in range(2))
        (score,) = recorded(context, session, first, second, latency=short())
        backward = context.backward(score.sum())
        assert calls_of((await carry_back(stream, torch.ones(1), torch.ones(1))).request.backward) == [(3, 0)]
        frame, _ = await posted(stream)
        assert calls_of(frame.request.backward) == [(2, 3), (1, 2)]
        await give_each(stream, frame.number, (), ())
        await backward


async def test_results_that_stay_are_propagated_in_the_request_of_the_call_that_used_them() -> None:
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        (token,) = context.record(session, [a], latency=short()).receive([], [], kept=1)
        (output,) = context.record(session, [], [token], short()).receive([torch.ones(2)], [0])
        backward = context.backward(output.sum())
        frame, _ = await posted(stream)
        assert calls_of(frame.request.backward) == [(2, 0), (1, 2)]
        await give_each(stream, frame.number, (), (torch.tensor([4.0]),))
        await backward
        assert gradient_of(context, a) == [4.0]


async def test_results_of_a_call_with_a_long_backward_wait_for_the_call_that_used_them() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        (token,) = context.record(session, []).receive([], [], kept=1)
        (output,) = context.record(session, [], [token], short()).receive([torch.ones(2)], [0])
        backward = context.backward(output.sum())
        frame, _ = await posted(stream)
        assert calls_of(frame.request.backward) == [(2, 0)]
        await stream.nothing_more()
        await give(stream, frame.number)
        assert calls_of((await carry_back(stream)).request.backward) == [(1, 2)]
        await backward


async def test_a_chain_on_the_owner_needs_one_request_for_all_its_calls() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        backward = context.backward(chain(context, session, 5).sum())
        frame, _ = await posted(stream)
        assert calls_of(frame.request.backward) == [(5, 0), (4, 5), (3, 4), (2, 3), (1, 2)]
        await give_each(stream, frame.number, *[()] * 5)
        await backward


@pytest.mark.parametrize("inputs", [0, 1], ids=["nothing is awaited", "inputs are awaited"])
async def test_a_chain_in_several_requests_stays_in_order(inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MOST_CALLS", 2)
    async with opened() as (session, stream, _):
        context = new_context()
        leaves = [leaf(1.0)] * inputs
        backward = context.backward(chain(context, session, 5, *leaves).sum())
        for calls in ([5, 4], [3, 2], [1]):
            frame, _ = await posted(stream)
            assert [call for call, _ in calls_of(frame.request.backward)] == calls
            await stream.nothing_more()
            await give_each(stream, frame.number, *[leaves if call == 1 else () for call in calls])
        await backward


async def test_nothing_follows_a_request_of_a_chain_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MOST_CALLS", 2)
    async with opened() as (session, stream, _):
        context = new_context()
        backward = context.backward(chain(context, session, 3).sum())
        await stream.refuse((await posted(stream))[0].number, RemoteError("no gradient", "builtins.RuntimeError"))
        with pytest.raises(RemoteError, match="no gradient"):
            await backward
        await stream.nothing_more()


async def test_calls_with_a_long_backward_have_requests_of_their_own() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        latencies = [short(), None, short(), Latency()]
        outputs = [recorded(context, session, latency=latency)[0] for latency in latencies]
        backward = context.backward(torch.stack(outputs).sum())
        frames = [(await posted(stream))[0] for _ in range(3)]
        assert [calls_of(frame.request.backward) for frame in frames] == [[(4, 0)], [(3, 4), (1, 2)], [(2, 3)]]
        for frame in frames:
            await give_each(stream, frame.number, *[()] * len(calls_of(frame.request.backward)))
        await backward


async def test_the_owner_says_how_long_the_backward_of_a_call_takes() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        latencies = [Latency(), short()]
        outputs = [recorded(context, session, latency=latency)[0] for latency in latencies]
        backward = context.backward(torch.stack(outputs).sum())
        for seconds in (0.5, 0.25):
            frame, _ = await posted(stream)
            await give_each(stream, frame.number, (), seconds=[seconds])
        await backward
        assert [latency.seconds for latency in latencies] == pytest.approx([0.25, 0.1])


async def test_large_gradients_are_sent_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MOST_BYTES", 1000)
    async with opened() as (session, stream, _):
        context = new_context()
        outputs = [
            recorded(context, session, outputs=[torch.ones(count)], latency=short())[0] for count in (100, 100, 300)
        ]
        backward = context.backward([each.sum() for each in outputs])
        frames = [(await posted(stream))[0] for _ in range(2)]
        assert [calls_of(frame.request.backward) for frame in frames] == [[(3, 0)], [(2, 3), (1, 2)]]
        for frame in frames:
            await give_each(stream, frame.number, *[()] * len(calls_of(frame.request.backward)))
        await backward


async def test_gradients_of_large_inputs_come_back_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MOST_BYTES", 1000)
    async with opened() as (session, stream, _):
        context, large = new_context(), torch.ones(200, requires_grad=True)
        outputs = [recorded(context, session, large, latency=short())[0] for _ in range(2)]
        backward = context.backward((outputs[0] + outputs[1]).sum())
        for call in (2, 1):
            frame = await carry_back(stream, torch.ones(200))
            assert frame.request.backward.call == call and not frame.request.backward.more
        await backward


async def test_what_one_message_may_have_bounds_a_request() -> None:
    async with opened(max_message_bytes=100) as (session, stream, _):
        context = new_context()
        outputs = [recorded(context, session, outputs=[torch.ones(20)], latency=short())[0] for _ in range(2)]
        backward = context.backward([each.sum() for each in outputs])
        carried = [calls_of((await carry_back(stream)).request.backward) for _ in range(2)]
        assert carried == [[(2, 0)], [(1, 2)]]
        await backward


async def test_a_local_part_that_takes_long_does_not_hold_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_backward, "_latencies", Latencies())
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        outputs = [recorded(context, session, a, latency=short())[0] for _ in range(2)]
        backward = context.backward((outputs[0] + outputs[1]).sum())
        frames = [(await posted(stream))[0] for _ in range(2)]
        assert [calls_of(frame.request.backward) for frame in frames] == [[(2, 0)], [(1, 2)]]
        for frame in frames:
            await give(stream, frame.number, torch.ones(1))
        await backward


async def test_an_error_of_one_call_is_the_error_of_the_backward() -> None:
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        outputs = [recorded(context, session, a, latency=short())[0] for _ in range(2)]
        backward = context.backward((outputs[0] + outputs[1]).sum())
        await stream.refuse((await posted(stream))[0].number, RemoteError("no gradient", "builtins.RuntimeError"))
        with pytest.raises(RemoteError, match="no gradient"):
            await backward
        assert context.gradient(a) is None


async def test_a_backward_is_freed_with_its_answers_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[RunningBackward]] = []
    before = RunningBackward.__init__

    def begin(self: RunningBackward, *args: Any) -> None:
        made.append(weakref.ref(self))
        before(self, *args)

    monkeypatch.setattr(RunningBackward, "__init__", begin)
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        backward = context.backward(recorded(context, session, a, latency=short())[0].sum())
        await carry_back(stream, torch.ones(1))
        gc.disable()
        try:
            await backward
            await until(lambda: made[0]() is None)
            assert len(made) == 1
        finally:
            gc.enable()


def chain(context: Context, session: Session, length: int, *inputs: torch.Tensor) -> torch.Tensor:
    """The output of the last of some calls, each of which takes the result of the one before, which stays."""
    tokens: tuple[torch.Tensor, ...] = ()
    for _ in range(length - 1):
        tokens = context.record(session, inputs, tokens, short()).receive([], [], kept=1)
        inputs = ()
    (output,) = context.record(session, inputs, tokens, short()).receive([torch.ones(2)], [0])
    return output


def gradient_of(context: Context, leaf: torch.Tensor) -> Any:
    gradient = context.gradient(leaf)
    return None if gradient is None else gradient.tolist()
