"""Tests of backwards on the event loop that wait for the gradients of one call's inputs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from ps_wire.errors import RemoteError
from ps_wire.runtime.latency import Latency
from tests.trainer_client.scripted_owner import opened
from tests.trainer_client.scripted_passes import carry_back, give, give_each, new_context, posted, recorded, short
from trainer_client.contexts.context import Context
from trainer_client.session.session import Session

pytestmark = pytest.mark.usefixtures("all_short")


def threads_of(tensor: torch.Tensor) -> list[int]:
    """The threads in which gradients of a tensor are computed, as they come."""
    seen: list[int] = []
    tensor.register_hook(lambda _: seen.append(threading.get_ident()))
    return seen


def chained(context: Context, session: Session, latency: Latency | None = None) -> list[torch.Tensor]:
    """The outputs of two calls, and of a third that takes these."""
    users, items = (recorded(context, session, latency=latency)[0] for _ in range(2))
    return [users, items, recorded(context, session, users, items, latency=latency)[0]]


async def test_it_goes_on_from_the_inputs_once_the_owner_has_answered() -> None:
    async with opened() as (session, stream, _):
        context, leaf = new_context(), torch.ones(2, requires_grad=True)
        users, _, scores = chained(context, session, short())
        users.retain_grad()
        seen = threads_of(scores), threads_of(users)
        backward = context.backward((scores * leaf * 3).sum())
        frame, (of_scores,) = await posted(stream)
        assert (frame.request.backward.call, of_scores.tolist()) == (3, [3.0, 3.0])
        assert [len(each) for each in seen] == [1, 0]
        await give(stream, frame.number, torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0]))
        last, (of_items,) = await posted(stream)
        request = last.request.backward
        assert [(each.call, each.after) for each in (request, *request.more)] == [(2, 3), (1, 2)]
        assert of_items.tolist() == [4.0, 5.0]
        assert context.gradient(leaf) is None and not backward.done()
        await give_each(stream, last.number, [], [])
        await backward
        assert seen == ([threading.get_ident()], [threading.get_ident()])
        assert users.grad is not None and users.grad.tolist() == [1.0, 2.0]
        gradient = context.gradient(leaf)
        assert gradient is not None and gradient.tolist() == [3.0, 3.0]
        assert leaf.grad is None


async def test_local_work_before_the_inputs_belongs_to_it() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        (users,) = recorded(context, session)
        (scores,) = recorded(context, session, users * 2 + users * 3)
        seen = threads_of(users)
        backward = context.backward(scores.sum())
        await carry_back(stream, torch.tensor([1.0, 2.0]))
        frame, (of_users,) = await posted(stream)
        assert of_users.tolist() == [5.0, 10.0]
        await give(stream, frame.number)
        await backward
        assert seen == [threading.get_ident()]


async def test_an_input_without_a_gradient_ends_it_there() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        *_, scores = chained(context, session)
        backward = context.backward(scores.sum())
        await carry_back(stream, None, None)
        await backward
        await stream.nothing_more()


async def test_it_can_run_again_through_a_retained_graph() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        *_, scores = chained(context, session, short())
        loss = scores.sum()
        for number in (1, 2):
            backward = context.backward(loss, retain_graph=True)
            frame, _ = await posted(stream)
            assert frame.request.backward.backward == number
            await give(stream, frame.number, torch.ones(2), torch.ones(2))
            frame, _ = await posted(stream)
            await give_each(stream, frame.number, [], [])
            await backward


@pytest.mark.parametrize("refused", [1, 2])
async def test_the_error_of_an_owner_ends_it(refused: int) -> None:
    async with opened() as (session, stream, _):
        context, leaf = new_context(), torch.ones(2, requires_grad=True)
        *_, scores = chained(context, session, short())
        backward = context.backward((scores * leaf).sum())
        if refused == 2:
            await carry_back(stream, torch.ones(2), torch.ones(2))
        await stream.refuse((await posted(stream))[0].number, RemoteError("no gradient", "builtins.RuntimeError"))
        with pytest.raises(RemoteError, match="no gradient"):
            await backward
        assert context.gradient(leaf) is None
        # The turn of the next one comes all the same.
        last = context.backward(recorded(context, session)[0].sum())
        await carry_back(stream)
        await last


async def test_the_next_backward_waits_until_it_is_over() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        *_, scores = chained(context, session, short())
        backwards = [context.backward(scores.sum()), context.backward(recorded(context, session)[0].sum())]
        await carry_back(stream, torch.ones(2), torch.ones(2))
        frame, _ = await posted(stream)
        await stream.nothing_more()
        await give_each(stream, frame.number, [], [])
        assert (await carry_back(stream)).request.backward.backward == 2
        for backward in backwards:
            await backward


async def test_autocast_around_it_reaches_its_second_part() -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        *_, scores = chained(context, session, short())
        with torch.autocast("cpu", torch.bfloat16):
            backward = context.backward(scores.sum())
        first = await carry_back(stream, torch.ones(2), torch.ones(2))
        second, _ = await posted(stream)
        assert second.request.backward.numerics == first.request.backward.numerics
        assert first.request.backward.HasField("numerics")
        await give_each(stream, second.number, [], [])
        await backward


def one_whose_inputs_are_used_here_too(context: Context, session: Session) -> list[torch.Tensor]:
    (users,) = recorded(context, session)
    (scores,) = recorded(context, session, users)
    return [users, (scores * users).sum()]


def one_with_a_leaf_before_the_inputs(context: Context, session: Session) -> list[torch.Tensor]:
    (users,) = recorded(context, session)
    (scores,) = recorded(context, session, users * torch.ones(2, requires_grad=True))
    return [scores, scores.sum()]


def one_with_two_calls_that_are_waited_for(context: Context, session: Session) -> list[torch.Tensor]:
    users, items = (recorded(context, session)[0] for _ in range(2))
    scores = [recorded(context, session, each)[0] for each in (users, items)]
    return [scores[0], (scores[0] * scores[1]).sum()]


def one_that_waits_twice(context: Context, session: Session) -> list[torch.Tensor]:
    (users,) = recorded(context, session)
    (scores,) = recorded(context, session, recorded(context, session, users)[0])
    return [scores, scores.sum()]


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (one_whose_inputs_are_used_here_too, [1, 0]),
        (one_with_a_leaf_before_the_inputs, [1, 0]),
        (one_with_two_calls_that_are_waited_for, [1, 1, 0, 0]),
        (one_that_waits_twice, [1, 1, 0]),
    ],
)
async def test_graphs_whose_parts_cannot_run_one_after_the_other_have_a_thread(make: Any, inputs: list[int]) -> None:
    async with opened() as (session, stream, _):
        context = new_context()
        through, loss = make(context, session)
        seen = threads_of(through)
        backward = context.backward(loss)
        for count in inputs:
            await carry_back(stream, *[torch.ones(2)] * count)
        await backward
        assert seen and threading.get_ident() not in seen
