"""Tests of communicators with real trainers and owners: results, ends, cancellations, and blocking programs."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trainer_client as tc
from ps_service.server import Server
from ps_wire.limits import Limits
from tests.integration.support import in_memory, serving
from tests.waiting import until
from trainer_client.collectives.communicator import Communicator

SOON = 20.0
"""Seconds; a lease is longer, so whoever hears of something only when that ends has not heard of it soon."""


@asynccontextmanager
async def teams(
    size: int, limits: Limits | None = None, **more: Any
) -> AsyncIterator[tuple[Server, list[tc.Client], list[Communicator]]]:
    """An owner, trainers, and their communicator, by rank."""
    async with serving(limits) as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(tc.connect(server.address)) for _ in range(size)]
        made = await asyncio.gather(
            *(each.communicator("team", size, rank=rank, **more) for rank, each in enumerate(clients))
        )
        yield server, clients, list(made)


async def every(team: list[Communicator], call: Callable[[Communicator], Awaitable[Any]]) -> list[Any]:
    """What each member gets; all call at once."""
    return list(await asyncio.gather(*map(call, team), return_exceptions=True))


async def test_collectives_do_what_their_names_say() -> None:
    async with teams(3) as (server, _, team):
        assert [each.rank for each in team] == [0, 1, 2]
        assert await every(team, lambda each: each.barrier()) == [None] * 3
        texts = ["a" * (each.rank + 1) for each in team]
        assert await every(team, lambda each: each.gather(texts[each.rank], to=1)) == [None, texts, None]
        assert (
            await every(team, lambda each: each.all_gather({"rank": each.rank}))
            == [[{"rank": rank} for rank in range(3)]] * 3
        )
        assert await every(team, lambda each: each.broadcast("x" if each.rank == 2 else None, source=2)) == ["x"] * 3
        assert await every(team, lambda each: each.scatter(texts if each.rank == 1 else None, source=1)) == texts
        assert await every(team, lambda each: each.all_reduce(each.rank + 1)) == [6] * 3
        found = await every(team, lambda each: each.all_gather(torch.full((each.rank, 2), each.rank)))
        for values in found:
            assert [value.tolist() for value in values] == [[[rank, rank]] * rank for rank in range(3)]
        await every(team, lambda each: each.leave())
        assert server.engine.communicators.nbytes == 0
        assert not server.engine.communicators._members and not server.engine.communicators._present


async def test_all_reduce_reduces_numbers_and_tensors_in_any_structure() -> None:
    async with teams(3) as (_, _, team):
        for op, number, tensor in (
            ("sum", 6, [6.0, -6.0]),
            ("mean", 2.0, [2.0, -2.0]),
            ("min", 1, [1.0, -3.0]),
            ("max", 3, [3.0, -1.0]),
            ("product", 6, [6.0, -6.0]),
        ):
            found = await every(
                team,
                lambda each, op=op: each.all_reduce(  # type: ignore[misc]
                    {"n": each.rank + 1, "t": [torch.tensor([each.rank + 1.0, -each.rank - 1.0]), (each.rank * 1.0,)]},
                    op,  # type: ignore[arg-type]
                ),
            )
            for each in found:
                assert (each["n"], each["t"][0].tolist()) == (number, tensor)
                assert isinstance(each["t"][1], tuple)
        (result, *_) = await every(team, lambda each: each.all_reduce(torch.tensor([200], dtype=torch.uint8)))
        assert (result.dtype, result.tolist()) == (torch.int64, [600])
        (result, *_) = await every(team, lambda each: each.all_reduce(torch.nan if each.rank == 1 else 1.0, "max"))
        assert result != result
        for wrong in ("text", None, torch.eye(2).to_sparse(), 1 << 70, [1, "x"]):
            with pytest.raises(tc.errors.InvalidArgumentError, match="no sum"):
                await team[0].all_reduce(wrong)
        with pytest.raises(tc.errors.InvalidArgumentError, match="op is one of"):
            await team[0].all_reduce(1, "median")  # type: ignore[arg-type]
        # What was refused here has not taken part.
        assert await every(team, lambda each: each.barrier()) == [None] * 3
        found = await every(team, lambda each: each.all_reduce(torch.ones(each.rank + 1)))
        assert all(isinstance(each, tc.errors.InvalidArgumentError) for each in found)
        assert "rank 1 a torch.float32 tensor of shape (2,)" in str(found[2])


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 80), 1 << 80),
        st.floats(allow_nan=False),
        st.sampled_from(["", "text", "ü" * 40]),
        st.binary(max_size=20),
        st.integers(0, 3000).map(lambda size: torch.arange(size, dtype=torch.int32)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=5,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, list[tuple[str, int, list[Any]]]]:
    """A number of members, and collectives: kind, root, and the value of each member."""
    size = draw(st.integers(1, 4))
    kinds = st.sampled_from(["barrier", "gather", "broadcast", "scatter", "all_gather"])
    one = st.tuples(kinds, st.integers(0, size - 1), st.lists(VALUES, min_size=size, max_size=size))
    return size, draw(st.lists(one, min_size=1, max_size=6))


def reference(kind: str, root: int, values: list[Any], rank: int) -> Any:
    """What a member gets, in one process."""
    if kind == "gather":
        return values if rank == root else None
    return {"barrier": None, "broadcast": values[root], "scatter": values[rank], "all_gather": values}[kind]


async def run_alone(team: Communicator, program: list[tuple[str, int, list[Any]]], ahead: bool) -> list[Any]:
    """Calls the collectives of a program, one after the other or all at once."""
    pending = []
    for kind, root, values in program:
        mine = values[team.rank]
        if kind == "barrier":
            made: Any = team.barrier()
        elif kind == "gather":
            made = team.gather(mine, root)
        elif kind == "broadcast":
            made = team.broadcast(mine if team.rank == root else None, root)
        elif kind == "scatter":
            made = team.scatter(values if team.rank == root else None, root)
        else:
            made = team.all_gather(mine)
        pending.append(made)
        if not ahead:
            await made
    return [await each for each in pending]


async def test_random_collectives_do_what_a_plain_reference_does() -> None:
    async with in_memory() as owner, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(tc.connect(owner.connector())) for _ in range(4)]
        loop, names = asyncio.get_running_loop(), iter(range(10_000))

        async def run(size: int, program: list[tuple[str, int, list[Any]]], ahead: bool) -> None:
            name = f"team {next(names)}"
            team = await asyncio.gather(*(each.communicator(name, size) for each in clients[:size]))
            found = await asyncio.gather(*(run_alone(each, program, ahead) for each in team))
            for each, results in zip(team, found, strict=True):
                for (kind, root, values), result in zip(program, results, strict=True):
                    assert same(result, reference(kind, root, values, each.rank)), (kind, root, each.rank)
                await each.leave()
            assert owner.engine.communicators.nbytes == 0 and not owner.engine.communicators._present

        @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(programs(), st.booleans())
        def check(made: tuple[int, list[tuple[str, int, list[Any]]]], ahead: bool) -> None:
            asyncio.run_coroutine_threadsafe(run(*made, ahead), loop).result(60)

        await asyncio.to_thread(check)


async def test_large_tensors_pass_without_limits_but_those_of_messages() -> None:
    async with teams(3) as (_, _, team):
        big = torch.arange(3_000_000, dtype=torch.float32)
        found = await every(team, lambda each: each.all_gather(big[: 1_000_000 * (each.rank + 1)] * 2))
        for values in found:
            assert [len(value) for value in values] == [1_000_000, 2_000_000, 3_000_000]
            assert torch.equal(values[2], big * 2)
        big = torch.ones(10)
        (own, *_) = await every(team, lambda each: each.all_gather(big))
        big.zero_()
        assert own[0].sum() == 10


async def test_values_beyond_the_limits_are_typed_errors_for_all() -> None:
    async with teams(3, Limits(max_message_bytes=1 << 20)) as (server, clients, team):
        with pytest.raises(tc.errors.TooLargeError, match="a message to owner 'ps0' may have 1,048,576"):
            await team[0].gather(torch.zeros(300_000), to=1)
        found = await every(team, lambda each: each.all_gather(torch.zeros(150_000)))
        assert all(isinstance(each, tc.errors.TooLargeError) for each in found), found
        assert "more than 1,048,576 bytes together" in str(found[0])
        assert server.engine.communicators.nbytes == 0
        # They make it again.
        again = await asyncio.gather(*(each.communicator("team", 3) for each in clients))
        assert sorted(await every(list(again), lambda each: each.all_reduce(1))) == [3] * 3


@pytest.mark.parametrize("value", [print, torch.nn.Linear, object()])
async def test_what_has_no_meaning_elsewhere_is_refused_here(value: Any) -> None:
    async with teams(2) as (_, clients, team):
        with pytest.raises(tc.errors.InvalidArgumentError, match="cannot be sent"):
            await team[0].all_gather([value])
        handle = await clients[0].module("torch.nn.Linear", 1, 1)
        with pytest.raises(tc.errors.InvalidArgumentError, match="cannot be sent"):
            await team[0].all_gather(handle)
        for values in (None, [1], "ab", 7):
            with pytest.raises(tc.errors.InvalidArgumentError, match="list of 2 values"):
                await team[0].scatter(values)  # type: ignore[arg-type]
        for root in (-1, 2, True, "0"):
            with pytest.raises(tc.errors.InvalidArgumentError, match="0 to 1"):
                await team[0].gather(1, to=root)  # type: ignore[arg-type]
        assert await every(team, lambda each: each.all_gather(each.rank)) == [[0, 1]] * 2


async def test_different_collectives_are_an_error_that_names_both() -> None:
    async with teams(3) as (_, clients, team):
        found = await asyncio.gather(team[0].gather(1), team[1].barrier(), team[2].gather(2), return_exceptions=True)
        for each in found:
            assert isinstance(each, tc.errors.InvalidArgumentError)
            assert "barrier()" in str(each) and "gather(to=0)" in str(each)
            assert clients[1].trainer_name in str(each)
        with pytest.raises(tc.errors.InvalidArgumentError, match="an earlier collective"):
            await team[0].barrier()


@pytest.fixture
def soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner gives up after a hundredth of a time-out, and not so little before its end that a stall is longer."""
    monkeypatch.setattr("trainer_client.collectives.communicator.owner_seconds", lambda seconds: seconds / 100)


@pytest.mark.usefixtures("soon_over")
async def test_a_time_out_names_who_is_missing() -> None:
    async with teams(3) as (_, clients, team):
        first = asyncio.create_task(_result(team[2].barrier()))
        with pytest.raises(tc.errors.DeadlineExceededError, match=rf"for rank 1 \(trainer {clients[1].trainer_name}"):
            await team[0].barrier(timeout=20.0)
        error = await first
        assert isinstance(error, tc.errors.DeadlineExceededError) and "rank 0" in str(error) and "rank 1" in str(error)
        # The one that comes late hears why.
        with pytest.raises(tc.errors.DeadlineExceededError, match="for rank 1"):
            await team[1].barrier()


@pytest.mark.usefixtures("soon_over")
async def test_not_enough_members_are_an_error_that_tells_how_many_came(ps: tc.Client) -> None:
    with pytest.raises(tc.errors.DeadlineExceededError, match="1 of 2 trainers have joined"):
        await ps.communicator("team", 2, timeout=20.0)


@pytest.mark.parametrize("how", ["closes", "leaves", "raises", "cancels"])
async def test_those_that_wait_hear_how_a_member_has_ended(how: str) -> None:
    async with teams(3) as (_, clients, team):
        waiting = [asyncio.create_task(_result(each.barrier())) for each in team[:2]]
        await asyncio.gather(*(each.status() for each in clients))
        if how == "closes":
            await clients[2].close()
        elif how == "leaves":
            await team[2].leave()
        elif how == "cancels":
            call = team[2].all_gather(1)
            call.cancel()
        else:
            with pytest.raises(ValueError, match="broken"):
                async with team[2]:
                    raise ValueError("broken")
        for error in await asyncio.wait_for(asyncio.gather(*waiting), SOON):
            assert isinstance(error, tc.errors.UnavailableError | tc.errors.InvalidArgumentError)
            assert f"rank 2 (trainer {clients[2].trainer_name}" in str(error)
            assert how != "raises" or "ValueError: broken" in str(error)
        with pytest.raises((tc.errors.UnavailableError, tc.errors.InvalidArgumentError)):
            await team[0].barrier()


async def test_a_wait_holds_no_thread_and_can_be_cancelled() -> None:
    async with teams(2) as (server, clients, team):
        calls = [asyncio.create_task(_result(team[0].barrier())) for _ in range(30)]
        found = server.engine.communicators
        await until(lambda: sum(len(each.open) for each in found._present) == 30)
        assert server.engine.compute.waiting == 0 and (await clients[0].status()).waiting == 30
        calls[7].cancel()
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, asyncio.CancelledError) for each in errors) == 1
        assert sum(isinstance(each, tc.errors.UnavailableError) for each in errors) == 29
        assert not any(each.open or each.nbytes for each in found._present)


async def test_a_cancelled_join_leaves_no_member_behind() -> None:
    async with serving() as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(tc.connect(server.address)) for _ in range(3)]
        first = asyncio.create_task(_result(clients[0].communicator("team", 2)))
        await until(lambda: server.engine.communicators._formations.all())
        first.cancel()
        await until(lambda: not server.engine.communicators._formations.all())
        team = await asyncio.gather(*(each.communicator("team", 2) for each in clients[1:]))
        assert await every(list(team), lambda each: each.all_reduce(1)) == [2, 2]


async def test_a_communicator_that_its_program_has_dropped_keeps_nobody_waiting() -> None:
    async with teams(2) as (server, clients, _):
        team = await asyncio.gather(*(each.communicator("dropped", 2, rank) for rank, each in enumerate(clients)))
        waiting = asyncio.create_task(_result(team[0].barrier()))
        await clients[0].status()
        team.pop()
        error = await asyncio.wait_for(waiting, SOON)
        assert isinstance(error, tc.errors.UnavailableError) and "rank 1" in str(error) and "dropped" in str(error)
        # The answer has come, and the task that waits for it is cancelled.
        first = clients[0].communicator("again", 2, 0)
        second = asyncio.create_task(_result(clients[1].communicator("again", 2, 1)))
        other = await first
        await until(lambda: len(server.engine.communicators._members) >= 4)
        second.cancel()
        result = (await asyncio.gather(second, return_exceptions=True))[0]
        del second
        if not isinstance(result, Communicator):
            with pytest.raises(tc.errors.UnavailableError, match="rank 1"):
                await asyncio.wait_for(other.barrier(), SOON)


@pytest.mark.parametrize(
    "arguments",
    [("team", 0), ("team", 5000), ("team", 2.5), ("team", 2, 2), ("team", 2, -1), (7, 2), ("", 1), ("x" * 129, 1)],
)
async def test_a_communicator_that_makes_no_sense_is_a_typed_error(ps: tc.Client, arguments: Any) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError):
        await ps.communicator(*arguments)


async def test_cancelled_members_keep_nobody_waiting_and_no_value_goes_astray() -> None:
    rng = random.Random(0)
    async with teams(3) as (server, clients, _):
        for number in range(40):

            async def member(team: Communicator) -> None:
                async with team:
                    for step in range(4):
                        assert await team.all_gather((team.name, step)) == [(team.name, step)] * 3
                        assert await team.broadcast(step if team.rank == 1 else None, source=1) == step

            made = await asyncio.gather(*(each.communicator(str(number), 3) for each in clients))
            tasks = [asyncio.create_task(member(each)) for each in made]
            await asyncio.sleep(rng.choice([0.0, 0.001, 0.002, 0.004]))
            tasks[rng.randrange(3)].cancel()
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SOON)
            if any(isinstance(each, asyncio.CancelledError) for each in results):
                # The others have heard of it, unless they had all that they wanted.
                assert all(
                    isinstance(each, asyncio.CancelledError | tc.errors.UnavailableError | None) for each in results
                )
            else:
                assert results == [None] * 3
        await until(lambda: len(server.engine.communicators._members) == 3)


async def test_blocking_programs_use_communicators_too(owner: Server) -> None:
    results: list[Any] = []

    def member() -> None:
        with tc.connect(owner.address) as ps, ps.communicator("team", 3) as team:
            rank = team.rank
            results.append(
                (rank, team.gather(rank), team.all_reduce(rank), team.scatter([5, 6, 7] if rank == 0 else None))
            )
            team.barrier()

    threads = [threading.Thread(target=member) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        await asyncio.to_thread(each.join)
    assert sorted(results) == [(0, [0, 1, 2], 3, 5), (1, None, 3, 6), (2, None, 3, 7)]
    assert not owner.engine.communicators._present


async def _result(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except tc.PsError as error:
        return error
