"""Tests that calls are counted, gradients stay in their pass, and owners are told of its end."""

from __future__ import annotations

import asyncio

import pytest
import torch

from ps_wire.errors import ContextEndedError, ContextLostError, InvalidArgumentError
from ps_wire.refs import ContextId, Ref, new_object_id
from ps_wire.runtime.scopes import Scope, current_scope
from ps_wire.v1.frames_pb2 import Reply
from tests.trainer_client.scripted_owner import Stream, encoded, look_up, opened, reconnected
from tests.trainer_client.scripted_passes import carry_back, give, leaf, new_context, posted, recorded
from trainer_client.contexts.context import Context
from trainer_client.graph.current import Openings, current_context
from trainer_client.session.session import Session


def gradient_of(context: Context, parameter: torch.Tensor) -> list[float]:
    gradient = context.gradient(parameter)
    assert gradient is not None
    return gradient.tolist()


# The block


async def test_the_block_makes_a_context_the_current_one() -> None:
    async with new_context() as context:
        assert current_context() is context
    assert current_context() is None
    with context_of_a_thread() as context:
        assert current_context() is context
    assert current_context() is None


def context_of_a_thread() -> Context:
    return Context(ContextId(bytes(16), 2), asyncio.get_running_loop())


async def test_contexts_do_not_nest() -> None:
    async with new_context() as outer:
        inner = new_context()
        with pytest.raises(RuntimeError, match="do not nest"):
            inner.enter()
        assert current_context() is outer


async def test_a_context_is_used_once() -> None:
    async with new_context() as context:
        pass
    with pytest.raises(ContextEndedError):
        context.enter()


async def test_the_end_is_told_although_the_call_around_it_was_given_up() -> None:
    async with opened() as (session, stream, _):
        scope = Scope(depth=2)
        token = current_scope.set(scope)
        with new_context() as context:
            recorded(context, session)
            scope.cancel()
        current_scope.reset(token)
        request = (await stream.request()).request
        assert request.HasField("end_context") and request.depth == 0
        later = look_up(session, "x")
        assert (await stream.frame()).request.WhichOneof("operation") == "lookup", "the end was cancelled"
        later.cancel()


async def test_the_end_is_told_to_every_owner_that_took_part() -> None:
    async with opened() as (session, stream, _), opened(owner="ps1") as (other, other_stream, _):
        async with new_context() as context:
            recorded(context, session)
            recorded(context, session)
        await stream.request()
        await stream.nothing_more()
        await other_stream.nothing_more()
        async with new_context() as context:
            recorded(context, other)
        assert (await other_stream.request()).request.end_context.context.number == 1


async def test_the_end_says_which_other_contexts_are_over() -> None:
    async with opened() as (session, stream, _):
        openings = Openings()
        contexts = []
        for _ in range(3):
            id = ContextId(session.trainer, openings.number())
            contexts.append(Context(id, session.loop, openings=openings))
            openings.opened(contexts[-1])
        recorded(contexts[1], session)
        contexts[1].end()
        ending = (await stream.request()).request.end_context
        assert (ending.context.number, ending.all_before, list(ending.but)) == (2, 4, [1, 3])


async def test_an_error_in_the_block_ends_the_context_too() -> None:
    async with opened() as (session, stream, _):
        with pytest.raises(ZeroDivisionError):
            async with new_context() as context:
                recorded(context, session)
                raise ZeroDivisionError
        assert context.ended
        assert (await stream.request()).request.HasField("end_context")


# Calls


async def test_calls_are_numbered() -> None:
    async with opened() as (session, _, _owner):
        context = new_context()
        calls = [context.record(session, []).call for _ in range(3)]
        assert [(call.number, call.place) for call in calls] == [(1, (1,)), (2, (2,)), (3, (3,))]
        assert context.sessions == [session]
        assert repr(context) == f"<Context {context.id}, 3 calls on {session.owner}>"


async def test_a_context_that_has_ended_takes_no_more() -> None:
    async with opened() as (session, _, _owner):
        context, a = new_context(), leaf(1.0)
        context.end()
        for use in (
            lambda: context.record(session, []),
            lambda: context.backward(a.sum()),
            lambda: context.propagate(a.sum()),
            context.get_gradients,
            lambda: context.clip_grad_norm([a], 1.0),
        ):
            with pytest.raises(ContextEndedError):
                use()


async def test_a_session_of_another_client_may_not_take_part() -> None:
    async with opened() as (session, _, _owner):
        context = Context(ContextId(bytes(16), 1), session.loop)
        with pytest.raises(InvalidArgumentError, match="different clients"):
            context.record(session, [])


async def test_a_pass_is_lost_with_the_session_of_an_owner_that_took_part() -> None:
    async with opened() as (session, stream, owner), opened(owner="ps1") as (other, _, _owner):
        context, later = new_context(), new_context()
        recorded(context, session)
        stream = await reconnected(stream, owner, resumed=False)
        await _answered(session, stream)
        with pytest.raises(ContextLostError, match="'ps0' has lost its part"):
            context.record(other, [])
        later.record(session, [])


async def _answered(session: Session, stream: Stream) -> None:
    pending = look_up(session, "last")
    await stream.answer((await stream.request()).number)
    await pending


# Backward and gradients


async def test_gradients_stay_in_their_context() -> None:
    first, second, a = new_context(), new_context(), leaf(1.0, 2.0)
    a.grad = torch.tensor([7.0, 7.0])
    await first.backward((a * 3).sum())
    await second.backward((a * 5).sum())
    assert (gradient_of(first, a), gradient_of(second, a)) == ([3.0, 3.0], [5.0, 5.0])
    assert a.grad.tolist() == [7.0, 7.0]


async def test_gradients_add_up_over_backwards() -> None:
    context, a = new_context(), leaf(1.0)
    await context.backward((a * 3).sum())
    await context.backward((a * 4).sum())
    assert gradient_of(context, a) == [7.0]


async def test_gradients_are_gone_with_the_context() -> None:
    context, a = new_context(), leaf(1.0)
    await context.backward((a * 3).sum())
    context.end()
    assert (context.gradient(a), context.local.items()) == (None, [])


async def test_several_roots_and_their_gradients() -> None:
    context, a = new_context(), leaf(1.0, 2.0)
    await context.backward([a * 2, a.sum()], [torch.tensor([1.0, 10.0]), None])
    assert gradient_of(context, a) == [3.0, 21.0]
    await context.backward(a * 1, torch.tensor([1.0, 1.0]))
    assert gradient_of(context, a) == [4.0, 22.0]


async def test_torchs_errors_are_raised_and_nothing_is_kept() -> None:
    context, a = new_context(), leaf(1.0, 2.0)
    a.grad = torch.zeros(2)
    with pytest.raises(RuntimeError, match="scalar outputs"):
        await context.backward(a * 2)
    assert context.gradient(a) is None
    assert a.grad.tolist() == [0.0, 0.0]


async def test_backwards_run_in_the_order_in_which_they_were_asked_for() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        (first,), (second,) = recorded(context, session), recorded(context, session)
        pending = [context.backward(first.sum()), context.backward(second.sum())]
        frame, _ = await posted(stream)
        assert (frame.request.backward.backward, frame.request.backward.call) == (1, 1)
        await stream.nothing_more()
        await give(stream, frame.number)
        frame = await carry_back(stream)
        assert (frame.request.backward.backward, frame.request.backward.call) == (2, 2)
        await asyncio.gather(*pending)


async def test_propagate_runs_in_the_thread_that_calls_it() -> None:
    async with opened() as (session, stream, _):
        context, a = new_context(), leaf(1.0)
        (output,) = recorded(context, session, a)
        running = asyncio.create_task(asyncio.to_thread(context.propagate, output.sum()))
        await carry_back(stream, torch.tensor([6.0]))
        await running
        assert gradient_of(context, a) == [6.0]


async def test_gradients_are_asked_of_owners_and_of_those_that_they_have_called() -> None:
    here, there = Ref("ps0", new_object_id(), "weight"), Ref("ps1", new_object_id(), "bias")
    async with opened() as (session, stream, _), opened(owner="ps1") as (other, other_stream, _):

        async def reach(name: str) -> Session:
            assert name == "ps1"
            return other

        context, a = new_context(reach=reach), leaf(1.0)
        recorded(context, session)
        await context.backward((a * 3).sum())
        pending = context.get_gradients()
        await _tell_gradient(stream, here, torch.tensor([1.0, 2.0]), others=["ps1", "ps0"])
        await _tell_gradient(other_stream, there, torch.tensor([3.0]), others=["ps0"])
        found = await pending
        by_name = {getattr(key, "ref", "local"): value.tolist() for key, value in found.items()}
        assert by_name == {"local": [3.0], here: [1.0, 2.0], there: [3.0]}
        await stream.nothing_more()


async def _tell_gradient(stream: Stream, ref: Ref, gradient: torch.Tensor, others: list[str]) -> None:
    frame = await stream.request()
    assert frame.request.gradients.context.number == 1
    reply = Reply()
    payload = encoded(reply.gradients.gradients, [gradient])
    reply.gradients.parameters.append(ref.to_message())
    reply.gradients.others.extend(others)
    await stream.answer(frame.number, payload, gradients=reply.gradients)


async def test_local_gradients_can_be_scaled() -> None:
    context, a, without = new_context(), leaf(1.0), leaf(1.0)
    await context.backward((a * 3).sum())
    context.scale([a, without], 0.5)
    assert gradient_of(context, a) == [1.5]
    assert context.gradient(without) is None
