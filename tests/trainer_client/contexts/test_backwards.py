"""Tests that short backwards run on the event loop, all others in threads, and all in order."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch

from ps_wire.errors import RemoteError
from ps_wire.runtime.latency import Latency
from tests.custom_functions import Doubled
from tests.trainer_client.scripted_owner import Stream, opened
from tests.trainer_client.scripted_passes import carry_back, give, new_context, posted, recorded
from trainer_client.contexts.context import Context
from trainer_client.graph.leaves import reservations
from trainer_client.graph.short_graphs import short_graph
from trainer_client.session.session import Session


async def thread_of(context: Context, stream: Stream, loss: torch.Tensor, through: torch.Tensor, *inputs: Any) -> int:
    """The thread in which a loss is propagated, seen by a hook of a tensor on the way."""
    seen: list[int] = []
    through.register_hook(lambda _: seen.append(threading.get_ident()))
    backward = context.backward(loss)
    await carry_back(stream, *inputs)
    await backward
    (thread,) = seen
    return thread


async def test_a_graph_that_was_seen_to_be_short_runs_on_the_event_loop(all_short: None) -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        (output,) = recorded(context, session)
        assert await thread_of(context, stream, output.sum(), output) == threading.get_ident()


async def test_a_graph_that_was_not_seen_yet_has_a_thread() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        (output,) = recorded(context, session)
        loss = output.cosh().sinh().tanh().erf().sum()
        assert await thread_of(context, stream, loss, output) != threading.get_ident()


def with_a_hook_of_a_leaf(output: torch.Tensor) -> torch.Tensor:
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(lambda gradient: gradient)
    return (output * leaf).sum()


def with_a_hook_after_a_leaf(output: torch.Tensor) -> torch.Tensor:
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_post_accumulate_grad_hook(lambda leaf: None)
    return (output * leaf).sum()


def with_a_function_of_the_user(output: torch.Tensor) -> torch.Tensor:
    doubled: torch.Tensor = Doubled.apply(output)  # type: ignore[no-untyped-call]
    return doubled.sum()


def with_many_nodes(output: torch.Tensor) -> torch.Tensor:
    for _ in range(40):
        output = output + 1
    return output.sum()


@pytest.mark.parametrize(
    "make", [with_a_hook_of_a_leaf, with_a_hook_after_a_leaf, with_a_function_of_the_user, with_many_nodes]
)
async def test_backwards_that_may_wait_or_take_long_have_a_thread(all_short: None, make: Any) -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        (output,) = recorded(context, session)
        assert await thread_of(context, stream, make(output), output) != threading.get_ident()


async def test_a_group_of_processes_may_wait_at_a_leaf(all_short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    async with opened() as (session, stream, _):
        context, leaf = new_context(), torch.ones(2, requires_grad=True)
        (output,) = recorded(context, session)
        assert await thread_of(context, stream, (output * leaf).sum(), output) != threading.get_ident()


async def test_gradients_of_local_leaves_stand_in_the_context_once_the_owners_have_answered(all_short: None) -> None:
    async with opened() as (session, stream, _):
        context, leaf = new_context(), torch.ones(2, requires_grad=True)
        before = leaf.grad = torch.ones(2)
        (output,) = recorded(context, session)
        seen: list[int] = []
        output.register_hook(lambda _: seen.append(threading.get_ident()))
        backward = context.backward((output * leaf * 3).sum())
        assert (seen, leaf.grad, context.gradient(leaf)) == ([threading.get_ident()], before, None)
        await carry_back(stream)
        await backward
        gradient = context.gradient(leaf)
        assert gradient is not None and gradient.tolist() == [3.0, 3.0]
        assert leaf.grad.tolist() == [1.0, 1.0]


async def test_local_leaves_get_nothing_when_an_owner_fails(all_short: None) -> None:
    async with opened() as (session, stream, _):
        context, leaf = new_context(), torch.ones(2, requires_grad=True)
        (output,) = recorded(context, session)
        backward = context.backward((output * leaf).sum())
        await stream.refuse((await posted(stream))[0].number, RemoteError("no gradient", "builtins.RuntimeError"))
        with pytest.raises(RemoteError, match="no gradient"):
            await backward
        assert context.gradient(leaf) is None


async def test_a_leaf_that_another_pass_has_is_waited_for_in_a_thread(all_short: None) -> None:
    async with opened() as (session, stream, _):
        context, leaf = new_context(), torch.ones(2, requires_grad=True)
        (output,) = recorded(context, session)
        seen: list[int] = []
        output.register_hook(lambda _: seen.append(threading.get_ident()))
        with reservations.of([leaf]):
            backward = context.backward((output * leaf).sum())
            await stream.nothing_more()
            assert not seen
        await carry_back(stream)
        await backward
        assert seen != [threading.get_ident()]


async def test_inference_mode_does_not_reach_a_backward(all_short: None) -> None:
    async with opened() as (session, stream, _):
        context, leaf = new_context(), torch.ones(2, requires_grad=True)
        (output,) = recorded(context, session)
        loss = (output * leaf).sum()
        with torch.inference_mode():
            backward = context.backward(loss)
        await carry_back(stream)
        await backward
        gradient = context.gradient(leaf)
        assert gradient is not None and not gradient.is_inference()


async def test_each_call_is_added_after_the_next_later_one(all_short: None) -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        outputs = [recorded(context, session)[0] for _ in range(3)]
        backward = context.backward([outputs[1].sum(), outputs[2].sum(), outputs[0].sum()])
        frames = [(await posted(stream))[0] for _ in range(3)]
        assert [(f.request.backward.call, f.request.backward.after) for f in frames] == [(3, 0), (2, 3), (1, 2)]
        for frame in frames:
            await give(stream, frame.number)
        await backward


async def test_a_later_backward_begins_when_the_owners_have_answered(all_short: None) -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        (first,), (second,) = recorded(context, session), recorded(context, session)
        backwards = [context.backward(first.sum()), context.backward(second.sum())]
        frame, _ = await posted(stream)
        await stream.nothing_more()
        await give(stream, frame.number)
        assert (await carry_back(stream)).request.backward.backward == 2
        for backward in backwards:
            await backward


async def refused(stream: Stream, session: Session, context: Context) -> None:
    (output,) = recorded(context, session)
    backward = context.backward(output.sum())
    await stream.refuse((await posted(stream))[0].number, RemoteError("no gradient", "builtins.RuntimeError"))
    with pytest.raises(RemoteError, match="no gradient"):
        await backward


async def test_errors_of_owners_and_of_torch_are_raised_when_it_is_awaited(all_short: None) -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        await refused(stream, session, context)
        (output,) = recorded(context, session)
        backward = context.backward(output)
        with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
            await backward
        # The turn of the next one comes all the same.
        last = context.backward(output.sum())
        await carry_back(stream)
        await last


async def test_an_error_that_torch_raises_at_once_is_reported_if_nobody_reads_it(
    all_short: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as (session, _, _owner):
        context = new_context()
        (output,) = recorded(context, session)
        context.backward(output)
        context.end()
        gc.collect()
        assert "backward of a pass failed, and nobody awaited the result" in caplog.text


async def test_a_loss_of_another_context_is_refused(all_short: None) -> None:
    async with opened() as (session, _, _owner):
        (output,) = recorded(new_context(), session)
        with pytest.raises(RuntimeError, match=r"ctx.backward\(loss\)"):
            await new_context().backward(output.sum())


async def test_graphs_of_the_same_nodes_share_their_latency() -> None:
    async with opened() as (session, _, _owner):
        context = new_context()
        outputs = [recorded(context, session)[0] for _ in range(2)]
        first, second = (latency_of(output.sinh().sum(), context) for output in outputs)
        assert first is second is not latency_of(outputs[1].cosh().sum(), context)


def latency_of(loss: torch.Tensor, context: Context) -> Latency:
    found = short_graph((loss,), context)
    assert found is not None
    return found.latency
