"""Sessions and contexts that are listed, that the operator ends, and contexts that were left lying."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
import torch

import trainer_client as tc
from ps_service.requests import administration
from ps_service.server import Server
from ps_wire.connections.outbox import Outbox
from ps_wire.refs import ContextId
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.integration.administering import entered, evict, gate_of, id_of, listed, serving_gates, training
from tests.integration.support import COUNTER, GATE, in_memory, until
from tests.transports import over_each

# What is listed


@over_each
async def test_a_session_is_listed_with_its_bytes_and_references(transport: str) -> None:
    async with serving_gates(threads=4) as owner, training(owner, transport) as ps, training(owner) as other:
        net = await ps.module(torch.nn.Linear, 2, 2)
        gate = await ps.create(GATE)
        _theirs = await other.create(COUNTER)
        async with ps.context() as ctx:
            loss = (await net(torch.ones(1, 2))).sum()
            waiting = gate.wait()
            await entered(owner, 1)
            reply = await listed(owner)
            first, second = reply.sessions
            assert (first.id, second.id) == (id_of(ps), id_of(other))
            assert (first.transport, first.connected, first.away_seconds) == (
                transport,
                True,
                0.0,
            )
            assert first.peer.startswith("process " if transport == "shared_memory" else "127.0.0.1:")
            assert (first.contexts, first.requests_in_flight, first.references) == (1, 1, 2)
            assert first.age_seconds >= first.oldest_context_seconds > 0.0
            assert (second.contexts, second.requests_in_flight, second.references) == (0, 0, 1)
            (context,) = reply.contexts
            assert (context.id, list(context.sessions), reply.open_contexts) == (str(ctx.id), [first.id], 1)
            assert (context.requests_in_flight, context.unused_seconds) == (1, 0.0)
            assert context.age_seconds > 0.0
            assert ps.trainer not in reply.SerializeToString() and ps.trainer.hex() not in str(reply)
            gate_of(owner).open()
            assert await waiting == "through"
            (context,) = (await listed(owner)).contexts
            assert context.requests_in_flight == 0
            assert context.age_seconds >= context.unused_seconds > 0.0
            await ctx.backward(loss)


async def test_bytes_of_requests_are_told_by_session() -> None:
    async with serving_gates(threads=2) as owner, training(owner) as ps, training(owner) as other:
        counter, gate = await ps.create(COUNTER), await ps.create(GATE, name="gate")
        blocking = [gate.wait() for _ in range(2)]
        await asyncio.sleep(0)
        large = counter.echo(torch.zeros(1 << 20))
        # Bytes count from the first part of a message, requests from the last.
        await until(other, lambda status: (status.request_bytes, status.requests_in_flight) == (4 << 20, 3))
        first, second = (await listed(owner)).sessions
        assert (first.request_bytes, first.requests_in_flight) == (4 << 20, 3)
        assert (second.request_bytes, second.requests_in_flight) == (0, 0)
        gate_of(owner).open()
        await asyncio.gather(*blocking, large)


async def test_ids_that_begin_alike_are_told_apart_without_more_of_them() -> None:
    async with serving_gates() as owner, grpc.aio.insecure_channel(owner.address) as channel:
        stub = OwnerStub(channel)
        for last in ("01", "02"):
            await stub.Create(pb.CreateRequest(class_name=COUNTER), metadata=(("ps-trainer", "00" * 15 + last),))
        reply = await listed(owner)
        assert [each.id for each in reply.sessions] == ["00000000~1", "00000000~2"]
        assert [each.transport for each in reply.sessions] == ["unary", "unary"]
        assert not any(each.connected for each in reply.sessions)
        with pytest.raises(
            tc.errors.InvalidArgumentError, match=r"is ambiguous: it matches 2 \(00000000~1, 00000000~2\); give more"
        ):
            await evict(owner, session="00000000")
        assert (await evict(owner, session="00000000~2")).sessions == ["00000000~2"]
        assert [each.id for each in (await listed(owner)).sessions] == ["00000000"]


# Sessions that are ended


@over_each
async def test_an_evicted_session_is_lost_and_its_program_goes_on(
    transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_gates(threads=4) as owner, training(owner, transport) as ps, training(owner) as other:
        await ps.create(COUNTER, name="named")
        anonymous = await ps.create(COUNTER)
        await other.create(GATE, name="gate")
        theirs = await other.create(COUNTER)
        net = await ps.module(torch.nn.Linear, 2, 2, name="net", seed=0)
        mine = await ps.attach("gate")
        with pytest.raises(
            tc.errors.SessionLostError, match=r"has ended this session: its operator ended it\. Whether"
        ):
            async with ps.context() as ctx:
                loss = (await net(torch.ones(1, 2))).sum()
                waiting = mine.wait()
                await entered(owner, 1)
                assert (await evict(owner, session=id_of(ps)[:6])).sessions == [id_of(ps)]
                await waiting
        with pytest.raises(tc.errors.ContextEndedError):
            await ctx.backward(loss)
        with pytest.raises(tc.errors.StaleHandleError):
            await anonymous.get()
        assert f"session {id_of(ps)} was ended by the operator" in caplog.text
        # From here on it is a new session; the other trainer has noticed nothing.
        again = await ps.attach("named")
        assert await again.add(3) == 3
        net = await ps.attach("net")
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 2))).sum())
        assert await theirs.add(1) == 1
        gate_of(owner).open()
        assert len((await listed(owner)).sessions) == 2
        assert owner.engine.counters.sessions_ended == {"lease": 0, "operator": 1, "revoked": 0}


async def test_everything_an_evicted_session_held_is_freed() -> None:
    async with serving_gates(threads=2) as owner, training(owner) as ps:
        counter, gate = await ps.create(COUNTER), await ps.create(GATE)
        net = await ps.module(torch.nn.Linear, 2, 2)
        async with ps.context():
            await net(torch.ones(1, 2))
            pending = [gate.wait(), gate.wait(), counter.echo(torch.zeros(1 << 20))]
            # Both threads are taken: the large one is in the queue.
            await entered(owner, 2)
            held = gate_of(owner)
            await evict(owner, session=id_of(ps))
            for each in pending:
                with pytest.raises(tc.errors.SessionLostError):
                    await each
            engine = owner.engine
            assert (len(engine.registry), len(engine.contexts), len(engine.reply_cache)) == (0, 0, 0)
            held.open()
        await until(ps, lambda status: status.request_bytes == 0 and status.requests_in_flight == 0)


async def test_a_unary_trainers_requests_are_cancelled_with_its_session() -> None:
    trainer = (("ps-trainer", "ab" * 16),)
    async with serving_gates(threads=4) as owner, grpc.aio.insecure_channel(owner.address) as channel:
        stub = OwnerStub(channel)
        gate = (await stub.Create(pb.CreateRequest(class_name=GATE), metadata=trainer)).object.handle
        held = gate_of(owner)
        request = pb.CallRequest(target=gate, method="wait")
        numbered = (*trainer, ("ps-number", "7"))
        calls = [stub.Call(request, metadata=metadata) for metadata in (trainer, numbered, numbered)]
        waiting = [asyncio.ensure_future(call) for call in calls]
        await asyncio.to_thread(held.wait_for, 2)
        (session,) = (await listed(owner)).sessions
        assert (session.id, session.requests_in_flight, session.connected) == ("abababab", 2, True)
        await evict(owner, session="abab")
        for each in waiting:
            with pytest.raises(grpc.aio.AioRpcError, match="has ended this session: its operator ended it") as caught:
                await each
            assert caught.value.code() is grpc.StatusCode.ABORTED
        assert len(owner.engine.registry) == 0
        held.open()
        # The same trainer begins anew.
        await stub.Create(pb.CreateRequest(class_name=COUNTER), metadata=trainer)
        assert len((await listed(owner)).sessions) == 1


async def test_a_trainer_may_end_its_own_session() -> None:
    trainer = (("ps-trainer", "cd" * 16),)
    async with serving_gates() as owner, grpc.aio.insecure_channel(owner.address) as channel:
        stub = OwnerStub(channel)
        await stub.Create(pb.CreateRequest(class_name=COUNTER), metadata=trainer)
        reply = await stub.Evict(pb.EvictRequest(session="cdcdcdcd"), metadata=trainer)
        assert reply.sessions == ["cdcdcdcd"]
        assert len(owner.engine.registry) == len(owner.engine.sessions) == 0


async def test_a_stream_that_is_being_opened_does_not_go_on_with_an_evicted_session() -> None:
    async with in_memory() as owner:
        trainer = bytes(range(16))
        session_handler = owner.servicer.session_handlers.open(trainer)
        turn = session_handler.stream.greeted()
        administration.evict_session(owner.engine, trainer.hex()[:8])
        assert not session_handler.stream.take_over(Outbox(), turn)
        assert owner.engine.sessions.take_why_lost(trainer) == "its operator ended it"
        assert owner.engine.sessions.take_why_lost(trainer) == "", "it is told once"


@pytest.mark.parametrize(
    ("what", "error", "said"),
    [
        (
            {"session": "ffffffff"},
            tc.errors.UnknownNameError,
            "there is no session ffffffff here; `ps-service sessions` lists",
        ),
        (
            {"session": "xyz"},
            tc.errors.InvalidArgumentError,
            "'xyz' is not the id of a session; one looks like 0123abcd",
        ),
        ({"session": ""}, tc.errors.InvalidArgumentError, "'' is not the id of a session"),
        ({"session": "0" * 32}, tc.errors.InvalidArgumentError, "is not the id of a session"),
        ({"context": "ffffffff/1"}, tc.errors.UnknownNameError, "there is no context ffffffff/1 here"),
        (
            {"context": "ffffffff"},
            tc.errors.InvalidArgumentError,
            "is not the id of a context; one looks like 0123abcd/7",
        ),
        (
            {"unused_seconds": -1.0},
            tc.errors.InvalidArgumentError,
            "is a number of seconds from 0 to 1,000,000,000, not -1",
        ),
        ({"unused_seconds": float("nan")}, tc.errors.InvalidArgumentError, "not nan"),
        ({}, tc.errors.InvalidArgumentError, "say which session or context"),
    ],
)
async def test_the_error_explains_what_cannot_be_ended(
    owner: Server, ps: tc.Client, what: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await evict(owner, **what)
    assert len((await listed(owner)).sessions) == 1


async def test_a_busy_owner_is_administered_all_the_same() -> None:
    async with serving_gates(threads=1) as owner, training(owner) as ps:
        gate = await ps.create(GATE)
        waiting = [gate.wait() for _ in range(8)]
        held = gate_of(owner)
        # With the one that asks.
        await until(ps, lambda status: status.requests_in_flight == 8)
        (session,) = (await listed(owner)).sessions
        assert session.requests_in_flight == 8
        await evict(owner, session=session.id)
        for each in waiting:
            with pytest.raises(tc.errors.SessionLostError):
                await each
        held.open()


async def test_an_owner_that_writes_its_checkpoint_ends_nothing(owner: Server, ps: tc.Client) -> None:
    await ps.create(COUNTER)
    owner.engine.gate.state = owner.engine.gate.State.STOPPED
    with pytest.raises(tc.errors.UnavailableError, match="is shutting down"):
        await evict(owner, session=id_of(ps))
    assert len((await listed(owner)).sessions) == 1


# Contexts that are ended


async def test_an_evicted_context_is_lost_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async with serving_gates() as owner, training(owner) as ps:
        net = await ps.module(torch.nn.Linear, 2, 2, name="net")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        said = "its operator ended it"
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def other_pass() -> None:
            async with ps.context() as kept:
                going_on = (await net(torch.ones(1, 2))).sum()
                begun.set()
                await go_on.wait()
                await kept.backward(going_on)
                await opt.step(kept)

        other = asyncio.create_task(other_pass())
        await begun.wait()
        async with ps.context() as ctx:
            loss = (await net(torch.ones(1, 2))).sum()
            assert (await evict(owner, context=str(ctx.id))).contexts == [str(ctx.id)]
            for use in (lambda: ctx.backward(loss), lambda: net(torch.ones(1, 2)), lambda: opt.step(ctx)):
                with pytest.raises(tc.errors.ContextLostError, match=said):
                    await use()
        go_on.set()
        await other
        assert owner.engine.registry.named("net.optimizer").value.version == 1
        assert f"context {ctx.id} was ended by the operator" in caplog.text
        assert owner.engine.counters.contexts_ended == {"unused": 0, "operator": 1}
        await until(ps, lambda status: status.contexts == 0)
        assert len(owner.engine.contexts.over()[ps.trainer][1]) == 0, "their trainer has ended both"


async def test_a_context_whose_call_runs_is_ended_and_the_call_says_so() -> None:
    async with serving_gates(threads=4) as owner, training(owner) as ps:
        gate = await ps.create(GATE)
        async with ps.context() as ctx:
            waiting = gate.wait()
            await entered(owner, 1)
            (context,) = (await listed(owner)).contexts
            assert (context.id, context.requests_in_flight, context.unused_seconds) == (str(ctx.id), 1, 0.0)
            assert (await evict(owner, unused_seconds=0.0)).contexts == [], "it is in use"
            await evict(owner, context=context.id)
            gate_of(owner).open()
            with pytest.raises(tc.errors.ContextLostError, match="its operator ended it"):
                await waiting


async def test_contexts_that_were_not_used_for_long_are_ended_together() -> None:
    async with serving_gates() as owner, training(owner) as ps:
        net = await ps.module(torch.nn.Linear, 2, 2, name="net")
        old = owner.engine.contexts.open(ContextId(ps.trainer, 1 << 40))
        async with ps.context() as new:
            loss = (await net(torch.ones(1, 2))).sum()
            old.used -= 100.0
            assert (await evict(owner, unused_seconds=1000.0)).contexts == []
            assert (await evict(owner, unused_seconds=99.0)).contexts == [str(old.id)]
            await new.backward(loss)
        with pytest.raises(tc.errors.ContextLostError):
            owner.engine.contexts.find(old.id)
