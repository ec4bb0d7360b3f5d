"""Tests what a session keeps across broken streams, and the errors when a session or owner is lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.server import Server
from ps_wire.connections.connection import Connection, ConnectionBroken
from ps_wire.connections.frames import Packet
from ps_wire.connections.in_process import memory_pair
from ps_wire.limits import Limits
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Frame, Request
from tests.conftest import StartProcess
from tests.integration.support import COUNTER, GATE, Cuttable, HandMade, in_memory, serving, until
from tests.ports import ReservedPort
from trainer_client.transport.grpc_stream import GrpcConnector


async def test_a_resumed_session_has_its_anonymous_handles_and_its_open_contexts() -> None:
    async with serving() as owner:
        line = Cuttable(GrpcConnector(owner.address))
        async with tc.connect(line) as ps:
            net = await ps.module("torch.nn.Linear", 2, 2, seed=0)
            opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
            before = await net.state_dict()
            async with ps.context() as ctx:
                loss = (await net(torch.ones(1, 2))).sum()
                await line.cut()
                await ctx.backward(loss)
                await line.cut()
                assert await opt.step(ctx) == {"ps0": 1}
            await line.cut()
            after = await net.state_dict()
            torch.testing.assert_close(after["weight"], before["weight"] - 0.1)
            assert line.connections == 4
            status = await ps.status()
            assert (status.sessions, status.connected_sessions, len(status.objects)) == (1, 1, 1)


async def test_requests_made_without_a_connection_travel_when_there_is_one_and_cancelled_ones_never() -> None:
    async with in_memory() as owner:
        line = Cuttable(owner.connector())
        async with tc.connect(line) as ps:
            counter = await ps.create(COUNTER)
            await line.unplug()
            first, second, third = counter.add(1), counter.add(10), counter.add(100)
            assert "disconnected" in repr(ps)
            second.cancel()
            line.plug_in()
            assert (await first, await third) == (1, 101)


async def test_a_deadline_without_a_connection_says_that_there_is_none() -> None:
    async with in_memory() as owner:
        line = Cuttable(owner.connector())
        async with tc.connect(line) as ps:
            counter = await ps.create(COUNTER)
            await line.unplug()
            with pytest.raises(
                tc.errors.DeadlineExceededError, match=r"'ps0', to which there is no connection, within 0.01 s"
            ):
                await counter.options(timeout=0.01).add()
            line.plug_in()
            assert await counter.get() == 0


async def test_an_answer_that_comes_while_the_trainer_is_away_waits_for_it() -> None:
    async with in_memory() as owner, tc.connect(owner.connector()) as other:
        line = Cuttable(owner.connector())
        async with tc.connect(line) as ps:
            gate = await ps.create(GATE, name="gate")
            waiting = gate.wait()
            opener = await other.attach("gate")
            assert await opener.wait_for(1) == 1
            await line.unplug()
            await opener.open()
            await until(other, lambda status: status.requests_in_flight == 0)
            assert not waiting.done()
            line.plug_in()
            assert await waiting == "through"
            # It was not run again.
            assert await opener.wait_for(1) == 1


async def test_a_new_stream_of_a_trainer_takes_over_from_one_that_hangs() -> None:
    async with in_memory() as owner, tc.connect(owner.connector()) as ps:
        gate = await ps.create(GATE)
        old = await HandMade.greeted(owner.connector())
        wait = Frame(number=1, request=Request(call=pb.CallRequest(target=gate.ref.to_message(), method="wait")))
        await old.send(wait)
        assert await gate.wait_for(1) == 1
        new = HandMade(await owner.connector().connect())
        new.trainer = old.trainer
        await new.send(Frame(hello=new.hello(incarnation=owner.engine.incarnations.current, unanswered=[1])))
        assert (await new.receive()).welcome.resumed
        await new.send(wait)
        assert await old.ended()
        await gate.open()
        answer = await new.receive()
        assert (answer.number, answer.reply.call.result.text) == (1, "through")
        assert await gate.wait_for(1) == 1
        assert (await ps.status()).connected_sessions == 2


async def test_when_the_lease_has_run_out_the_session_is_lost() -> None:
    async with in_memory(Limits(lease_seconds=0.0)) as owner, tc.connect(owner.connector()) as other:
        line = Cuttable(owner.connector())
        async with tc.connect(line) as ps:
            named, anonymous = await ps.create(COUNTER, name="named"), await ps.create(COUNTER)
            gate = await other.create(GATE, name="gate")
            mine = await ps.attach("gate")
            waiting = mine.wait()
            await gate.wait_for(1)
            await line.unplug()
            adding = named.add()
            owner.servicer.session_handlers.sweep()
            assert len(owner.engine.registry) == 2
            line.plug_in()
            for lost in (waiting, adding):
                with pytest.raises(
                    tc.errors.SessionLostError, match=r"the lease had run out\. Whether the request ran is not"
                ):
                    await lost
            # From here on it is a new session.
            with pytest.raises(tc.errors.StaleHandleError, match="Ask for it again as at the beginning"):
                await anonymous.get()
            assert await (await ps.attach("named")).add(5) == 5
            await gate.open()


async def test_when_the_owner_was_killed_and_restarted_training_goes_on_with_named_objects(
    start_process: StartProcess,
) -> None:
    first = await start_process("--name", "ps0")
    async with tc.connect(first.address) as ps, tc.connect(first.address) as other:
        net = await ps.module("torch.nn.Linear", 2, 2, name="net", seed=0)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        gate = await ps.create(GATE, name="gate")
        waiting = gate.wait()
        await (await other.attach("gate")).wait_for(1)
        async with ps.context() as ctx:
            loss = (await net(torch.ones(1, 2))).sum()
            first.process.kill()
            await first.process.wait()
            await start_process("--name", "ps0", "--listen", first.address)
            with pytest.raises(
                tc.errors.SessionLostError,
                match=r"it has restarted\..*ps\.module\(…, name=…\) .* repeat the pass; ps\.run\(",
            ):
                await waiting
            with pytest.raises(tc.errors.ContextLostError, match="run forward again"):
                await ctx.backward(loss)
        with pytest.raises(tc.errors.StaleHandleError, match="has restarted since"):
            await net(torch.ones(1, 2))
        net = await ps.module("torch.nn.Linear", 2, 2, name="net", seed=0)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 2))).sum())
            assert await opt.step(ctx) == {"ps0": 1}


@pytest.fixture
def closed_address() -> Iterator[str]:
    """An address without a server."""
    with ReservedPort() as port:
        yield port.address


async def test_an_owner_that_was_never_there_is_said_to_be_missing_in_time(closed_address: str) -> None:
    # By itself, gRPC would try for 20 s.
    async with asyncio.timeout(50):
        with pytest.raises(
            tc.errors.UnavailableError,
            match=rf"no owner could be reached at {closed_address} for 0\.3 s .*is the address right\?",
        ):
            async with tc.connect(closed_address, connect_timeout=0.3):
                pass


async def test_an_owner_that_never_answers_is_said_to_be_missing_in_time() -> None:
    class Silent:
        address = "nowhere"

        async def connect(self) -> Silent:
            return self

        async def send(self, packet: object) -> None: ...

        async def receive(self) -> None:
            await asyncio.Event().wait()

        async def close(self) -> None: ...

    with pytest.raises(tc.errors.UnavailableError, match=r"at nowhere .*\(it does not answer\)"):
        await tc.connect(Silent(), connect_timeout=0.1)


async def test_one_owner_of_two_that_is_missing_leaves_nothing_open(closed_address: str) -> None:
    async with serving() as owner, tc.connect(owner.address) as watching:
        with pytest.raises(tc.errors.UnavailableError):
            await tc.connect(owner.address, closed_address, connect_timeout=0.1)
        await until(watching, lambda status: status.sessions == 1)
        with pytest.raises(
            tc.errors.InvalidArgumentError, match="two of the owners are called 'ps0': start each under"
        ):
            await tc.connect(owner.address, owner.address)
        await until(watching, lambda status: status.sessions == 1)


async def test_an_owner_that_comes_late_is_waited_for(closed_address: str) -> None:
    connecting = asyncio.ensure_future(tc.connect(closed_address, connect_timeout=20).__aenter__())
    async with serving(listen=closed_address):
        ps = await connecting
        assert await (await ps.create(COUNTER)).add() == 1
        await ps.close()


async def test_a_broken_stream_is_given_up_after_the_reconnect_timeout() -> None:
    async with in_memory() as owner:
        line = Cuttable(owner.connector())
        async with tc.connect(line, reconnect_timeout=0.1) as ps:
            counter = await ps.create(COUNTER)
            await line.unplug()
            with pytest.raises(tc.errors.UnavailableError, match=r"for 0\.1 s \(the cable is out\)"):
                await counter.add()
            # For good: plugging it in again does not help.
            line.plug_in()
            with pytest.raises(tc.errors.UnavailableError):
                await counter.add()
            assert "closed" in repr(ps)


@pytest.mark.parametrize("how", ["just cut", "unplugged"])
async def test_leaving_a_broken_connection_does_not_take_long(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_client.session.session._GOODBYE_SECONDS", 3600.0)
    async with in_memory() as owner:
        line = Cuttable(owner.connector())
        ps = await tc.connect(line)
        counter = await ps.create(COUNTER)
        await (line.cut() if how == "just cut" else line.unplug())
        waiting = counter.add()
        async with asyncio.timeout(60):
            await ps.close()
        with pytest.raises(tc.errors.ClosedError):
            await waiting
        await ps.close()


async def test_leaving_at_any_moment_after_a_cut_ends() -> None:
    """Also when the link is just about to open another stream."""
    async with in_memory() as owner:
        for turns in range(40):
            line = Cuttable(owner.connector())
            ps = await tc.connect(line)
            await line.cut()
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await ps.close()
            with pytest.raises(tc.errors.ClosedError):
                await ps.status()


async def test_writing_to_an_ended_stream_raises() -> None:
    async with serving() as owner:
        connection = await GrpcConnector(owner.address).connect()
        stream = HandMade(connection)
        await stream.send(Frame())
        assert (await stream.receive()).HasField("refusal") and await stream.ended()
        with pytest.raises(ConnectionBroken):
            await stream.send(Frame())
        with pytest.raises(ConnectionBroken):
            await stream.send(Frame())
        await connection.close()
        assert await stream.ended()


async def test_reading_from_a_closed_stream_raises() -> None:
    async with serving() as owner:
        stream = await HandMade.greeted(GrpcConnector(owner.address))
        reading = asyncio.create_task(stream.connection.receive())
        await asyncio.sleep(0)
        await stream.connection.close()
        with pytest.raises(ConnectionBroken, match="closed on this side"):
            await reading
        # A reader that is cancelled itself is not told that something broke.
        other = await HandMade.greeted(GrpcConnector(owner.address))
        reading = asyncio.create_task(other.connection.receive())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await other.connection.close()


class LateWelcome(Connection):
    """The owner's end of a stream on which sending takes until it may."""

    def __init__(self, inner: Connection) -> None:
        self._inner = inner
        self.sending, self.may_send = asyncio.Event(), asyncio.Event()
        self.part_bytes = inner.part_bytes

    async def send(self, packet: Packet) -> None:
        self.sending.set()
        await self.may_send.wait()
        await self._inner.send(packet)

    async def receive(self) -> Packet | None:
        return await self._inner.receive()

    async def close(self) -> None:
        await self._inner.close()


async def test_a_stream_whose_welcome_comes_late_does_not_take_the_session_from_a_newer_one() -> None:
    """As when a trainer uses shared memory already, while gRPC still sends the welcome that has offered it."""
    async with in_memory() as owner:
        near, far = memory_pair()
        late = LateWelcome(far)
        serving = asyncio.create_task(owner.servicer.serve(late))
        older = HandMade(near)
        await older.send(Frame(hello=older.hello()))
        await late.sending.wait()
        newer = HandMade(await owner.connector().connect())
        newer.trainer = older.trainer
        await newer.send(Frame(hello=newer.hello()))
        assert (await newer.receive()).HasField("welcome")
        late.may_send.set()
        async with asyncio.timeout(60):
            await serving
            await newer.send(Frame(number=1, request=Request(status=pb.StatusRequest())))
            assert (await newer.receive()).reply.status.connected_sessions == 1


async def test_a_port_where_an_http_server_is_fails_at_once() -> None:
    async with Server(Engine("ps0"), http="127.0.0.1:0", direct_port=0) as owner:
        text = f"no owner is at {owner.http_address}: an HTTP server is there; use the port of --listen, not that of"
        # The time-out is longer than a test may take.
        with pytest.raises(tc.errors.UnavailableError, match=re.escape(text)):
            await tc.connect(str(owner.http_address), connect_timeout=3600.0)
