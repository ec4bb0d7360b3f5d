"""Tests that errors, cancellations, time-outs and broken streams reach all calls of a chain, and that nothing stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_wire.errors import (
    CancelledCallError,
    DeadlineExceededError,
    InvalidArgumentError,
    OverloadedError,
    RemoteError,
    SessionLostError,
    StaleHandleError,
)
from ps_wire.limits import Limits
from ps_wire.refs import new_object_id
from ps_wire.v1.frames_pb2 import Cancel, Frame, Request
from ps_wire.v1.operations_pb2 import CallRequest, CreateRequest
from ps_wire.v1.values_pb2 import Handle, Nothing, Sequence, Value
from tests.conftest import StartOwner
from tests.integration.breaking import FAULTS, same_wherever_it_breaks
from tests.integration.support import AFFINE, COUNTER, GATE, Cuttable, HandMade, bits, in_memory, until
from trainer_client.transport.faulty import Fault, FaultyConnector, Plan
from trainer_client.transport.grpc_stream import GrpcConnector


async def idle(ps: tc.Client, owner: Server, objects: int) -> None:
    """Waits until an owner has no more than these objects, no result, and nothing in flight but the question."""
    engine = owner.engine
    await until(
        ps,
        lambda status: (len(engine.registry), engine.held.nbytes, status.requests_in_flight) == (objects, 0, 0),
    )


async def test_an_error_names_the_call_that_failed(ps: tc.Client, owner: Server) -> None:
    counter = await ps.create(COUNTER)
    failing = counter.fail("no luck")
    outer = counter.echo([counter.echo(failing)], counter.echo(1))
    with pytest.raises(
        ValueError, match=r"hosted_models\.Counter\.fail, whose result is an argument .*no luck"
    ) as caught:
        await outer
    assert isinstance(caught.value, RemoteError) and "Traceback" in caught.value.remote_traceback
    with pytest.raises(ValueError, match=r"^[^,]*no luck"):
        await failing
    with pytest.raises(ValueError, match=r"Counter\.fail, whose result"):
        await counter.echo(failing)
    await idle(ps, owner, 1)


async def test_an_error_of_another_owner_is_named(pair: tc.Client) -> None:
    there, here = await pair.create(COUNTER, owner="ps1"), await pair.create(COUNTER, owner="ps0")
    with pytest.raises(ValueError, match=r"Counter\.fail, whose result is an argument"):
        await here.echo(there.fail("no luck"))


async def test_the_error_of_the_outer_call_is_its_own(ps: tc.Client, owner: Server) -> None:
    counter = await ps.create(COUNTER)
    inner = counter.echo("what was said")
    with pytest.raises(ValueError, match=r"^[^,]*what was said"):
        await counter.fail(inner)
    assert await inner == "what was said"
    del inner
    await idle(ps, owner, 1)


async def test_cancelling_the_outer_call_cancels_the_chain(ps: tc.Client, owner: Server) -> None:
    gate, counter = await ps.create(GATE), await ps.create(COUNTER)
    inner = gate.wait()
    middle = counter.echo(inner)
    outer = asyncio.create_task(_awaited(counter.echo(middle)))
    await gate.wait_for(1)
    outer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outer
    for each in (middle, inner):
        with pytest.raises(CancelledCallError):
            await each
    await gate.open()
    await idle(ps, owner, 2)


async def test_calls_that_others_need_go_on(ps: tc.Client, owner: Server) -> None:
    gate, counter = await ps.create(GATE), await ps.create(COUNTER)
    inner = gate.wait()
    given_up, kept = counter.echo(inner), counter.echo(inner)
    await gate.wait_for(1)
    given_up.cancel()
    await gate.open()
    assert await kept == "through" == await inner
    del inner, given_up, kept
    await idle(ps, owner, 2)


async def test_cancelling_the_inner_call_fails_the_outer_ones(ps: tc.Client, owner: Server) -> None:
    gate, counter = await ps.create(GATE), await ps.create(COUNTER)
    inner = gate.wait()
    outer = counter.echo(counter.echo(inner))
    await gate.wait_for(1)
    inner.cancel()
    with pytest.raises(CancelledCallError, match=r"Gate\.wait, whose result"):
        await outer
    await gate.open()
    await idle(ps, owner, 2)


async def test_the_time_of_the_outer_call_is_that_of_the_chain(ps: tc.Client, owner: Server) -> None:
    gate, counter = await ps.create(GATE), await ps.create(COUNTER)
    inner = gate.wait()
    with pytest.raises(DeadlineExceededError, match="call: no answer"):
        await counter.options(timeout=0.1).echo(inner)
    with pytest.raises(CancelledCallError):
        await inner
    late = gate.options(timeout=0.1).wait()
    with pytest.raises(DeadlineExceededError, match=r"Gate\.wait, whose result"):
        await counter.echo(late)
    await gate.open()
    await idle(ps, owner, 2)


async def test_chains_over_owners_are_cancelled_and_run_out_of_time(pair: tc.Client) -> None:
    gate, counter = await pair.create(GATE, owner="ps0"), await pair.create(COUNTER, owner="ps1")
    first = gate.wait()
    # Before it is given up: a call that has not arrived by then never enters the gate.
    await gate.wait_for(1)
    with pytest.raises(DeadlineExceededError, match="did not come in time"):
        await counter.options(timeout=0.1).echo(first)
    second = gate.wait()
    outer = counter.echo(second)
    await gate.wait_for(2)
    outer.cancel()
    with pytest.raises(CancelledCallError):
        await outer
    await until(pair, lambda _: first.settled and second.settled)
    for each in (first, second):
        with pytest.raises(CancelledCallError):
            await each
    await gate.open()


async def test_results_that_stay_count_towards_the_budget(start_owner: StartOwner) -> None:
    owner = await start_owner(limits=Limits(max_context_bytes=1 << 20))
    async with tc.connect(owner.address) as ps:
        counter = await ps.create(COUNTER)
        inner = counter.echo(torch.zeros(1 << 18))
        assert len(await counter.echo(inner)) == 1 << 18
        with pytest.raises(OverloadedError, match="results that it left here"):
            await counter.echo(counter.echo(1))
        del inner
        await idle(ps, owner, 1)
        assert await counter.echo(counter.echo(1)) == 1


async def test_large_arguments_are_overtaken_by_calls_that_need_their_results(start_owner: StartOwner) -> None:
    owner = await start_owner(limits=Limits(max_session_bytes=4 << 20))
    async with tc.connect(owner.address, shared_memory=False) as ps:
        counter = await ps.create(COUNTER)
        # The second does not fit beside the first, and waits here; so do the calls that follow it.
        large = [counter.echo(torch.full((700_000,), float(number))) for number in range(3)]
        sums = [counter.echo([counter.echo(each), number]) for number, each in enumerate(large)]
        for number, (tensor, found) in enumerate(await asyncio.gather(*sums)):
            assert found == number and tensor[0] == number


async def job(ps: tc.Client) -> list[Any]:
    """Chains of calls with effects; everything that it saw."""
    counter = await ps.create(COUNTER)
    net = await ps.module(AFFINE, 3, 3, name="net", seed=0)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
    seen: list[Any] = []
    for _ in range(2):
        async with ps.context() as ctx:
            loss = (await net(net(counter.echo(torch.ones(2, 3))))).square().sum()
            await ctx.backward(loss)
            seen += [loss.detach(), await opt.step(ctx)]
        seen.append(await counter.add(counter.add(counter.add(1))))
    failed = await asyncio.gather(counter.echo(counter.fail("no luck")), return_exceptions=True)
    return bits([*seen, type(failed[0]).__name__, await net.state_dict(), await net.called()])


OF_CHAINS = ("call echo", "call add", "call fail", "call ", "call", "backward", "error")
"""Kinds of packets that chains change. `test_retries.py` has every fault at the others."""


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_stream_may_break_at_any_packet(fault: Fault) -> None:
    async def run(plan: Plan) -> list[Any]:
        async with in_memory() as owner:
            async with tc.connect(FaultyConnector(owner.connector(), plan)) as ps:
                found = await job(ps)
                await until(ps, lambda status: status.kept_answers == 0 and status.contexts == 0)
                await until(ps, lambda _: len(owner.engine.registry) <= 3)
            return found

    await same_wherever_it_breaks(run, fault, kinds=OF_CHAINS)


async def test_a_chain_fails_when_its_owner_has_restarted(start_owner: StartOwner) -> None:
    async with in_memory() as first, in_memory() as second:
        owners = [first, second]

        class Line(Cuttable):
            async def connect(self) -> Any:
                self._inner = owners[0].connector()
                return await super().connect()

        line = Line(first.connector())
        async with tc.connect(line) as ps:
            gate, counter = await ps.create(GATE), await ps.create(COUNTER)
            inner = counter.echo(3)
            assert await counter.echo(inner) == 3
            waiting = gate.wait()
            outer = counter.echo(waiting)
            await gate.wait_for(1)
            await gate.open()
            assert await outer == "through"
            lost = counter.echo(gate.wait())
            owners.reverse()
            await line.cut()
            with pytest.raises((SessionLostError, StaleHandleError)):
                await lost
            with pytest.raises((SessionLostError, StaleHandleError)):
                await counter.echo(inner)
            again = await ps.create(COUNTER)
            assert await again.echo(again.echo(4)) == 4
            with pytest.raises(StaleHandleError):
                await again.echo(inner)


class Raw(HandMade):
    """A stream with requests made by hand."""

    async def made(self) -> str:
        """Creates a counter; returns its id."""
        await self.send(Frame(number=1, request=Request(create=CreateRequest(class_name=COUNTER))))
        return (await self.receive()).reply.create.object.handle.object_id

    async def call(self, number: int, target: str, method: str, *args: Value, **fields: Any) -> None:
        request = CallRequest(target=Handle(owner="ps0", object_id=target), method=method, **fields.pop("call", {}))
        request.args.tuple.items.extend(args)
        await self.send(Frame(number=number, request=Request(call=request, **fields)))


async def test_requests_wait_for_those_that_arrive_later(owner: Server) -> None:
    stream = await Raw.greeted(GrpcConnector(owner.address))
    counter, id = await stream.made(), new_object_id()
    await stream.call(3, counter, "echo", Value(result=0), call={"results": [id]}, after=[2])
    await stream.call(2, counter, "echo", Value(integer=7), call={"result_id": id})
    answers = [await stream.receive(), await stream.receive()]
    assert [each.number for each in answers] == [2, 3]
    assert list(answers[0].reply.granted) == [id] and answers[1].reply.call.result.integer == 7
    # Later requests find it, too, until the reference is given back.
    await stream.call(4, counter, "echo", Value(result=0), call={"results": [id]})
    assert (await stream.receive()).reply.call.result.integer == 7
    # Those that wait for a request that never comes fail when that is cancelled.
    await stream.call(6, counter, "echo", Value(integer=1), after=[5])
    await stream.send(Frame(number=5, cancel=Cancel()))
    answers = sorted([await stream.receive(), await stream.receive()], key=lambda each: each.number)
    assert [each.reply.error.code for each in answers] == [CancelledCallError.code] * 2
    await stream.connection.close()


@pytest.mark.parametrize(
    ("args", "fields", "refusal"),
    [
        ([Value(result=0)], {}, "argument 0 among 0 results"),
        ([Value(result=1)], {"call": {"results": ["0" * 32]}}, "argument 1 among 1 results"),
        ([Value(result=0)], {"call": {"results": ["0" * 32]}}, "is gone"),
        ([Value(result=0)], {"call": {"results": ["itself"]}}, "holds a Counter"),
        ([Value(none=Nothing())], {"call": {"result_id": "short"}}, "32 hexadecimal digits"),
        ([Value(none=Nothing())], {"call": {"result_id": "itself"}}, "is in use"),
        ([Value(none=Nothing())], {"after": [9]}, "only earlier ones"),
        ([Value(none=Nothing())], {"after": [2]}, "only earlier ones"),
        ([Value(none=Nothing())], {"after": [0]}, "only earlier ones"),
        ([Value(list=Sequence(items=[Value(result=3)]))], {}, "argument 3 among 0 results"),
    ],
)
async def test_bad_requests_are_refused(owner: Server, args: list[Value], fields: dict[str, Any], refusal: str) -> None:
    stream = await Raw.greeted(GrpcConnector(owner.address))
    counter = await stream.made()
    text = repr(fields).replace("itself", counter)
    await stream.call(2, counter, "echo", *args, **eval(text))
    error = (await stream.receive()).reply.error
    assert refusal in error.message
    await stream.call(3, counter, "echo", Value(integer=1))
    assert (await stream.receive()).reply.call.result.integer == 1
    await stream.connection.close()


async def test_pending_arguments_of_constructors_are_refused(ps: tc.Client) -> None:
    counter = await ps.create(COUNTER)
    with pytest.raises(InvalidArgumentError, match="cannot be sent"):
        await ps.create(COUNTER, counter.echo(3))


async def _awaited(pending: tc.Pending[Any]) -> Any:
    return await pending
