"""What is over a quota of an identity, of a namespace or of all is refused, and what is freed can be used again."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path

import grpc
import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_service.monitoring.exporter import OwnerCollector
from ps_service.quotas.accounts import Account
from ps_service.quotas.quota import QuotaFile
from ps_service.server import Server
from ps_wire.codec.values import Encoder
from ps_wire.refs import ContextId, new_trainer_id
from ps_wire.v1.errors_pb2 import Error
from ps_wire.v1.frames_pb2 import Frame, Request
from ps_wire.v1.operations_pb2 import CallRequest, CreateRequest, EndContextRequest
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.integration.access.identities import Identities
from tests.integration.support import HandMade
from tests.waiting import until
from trainer_client.transport.grpc_stream import GrpcConnector

LINEAR = ("torch.nn.Linear", 249, 250)  # 250,000 bytes
OBJECTS = r"'anna' may use 4 of objects, uses 4, and this needs 1 more. Delete .* raise objects in \[identity.anna\]"


async def test_named_objects_have_a_quota_that_outlives_their_session(limited: Server, identities: Identities) -> None:
    async with identities.connect(limited, "anna") as ps:
        for number in range(4):
            await ps.module(*LINEAR, name=f"net{number}")
        assert (await ps.module(*LINEAR, name="net0")).owner, "what is there can be used"
        with pytest.raises(tc.errors.QuotaError, match=OBJECTS):
            await ps.module(*LINEAR, name="net4")
    async with identities.connect(limited, "anna") as ps:
        with pytest.raises(tc.errors.QuotaError, match=OBJECTS):
            await ps.module(*LINEAR)
        await ps.delete("net3")
        with pytest.raises(tc.errors.QuotaError, match=r"1,000,000 of object_bytes, uses 750,000, and .* 252,000 more"):
            await ps.module("torch.nn.Linear", 251, 250)
        await ps.module(*LINEAR, name="net3")
        with pytest.raises(tc.errors.QuotaError, match="object_bytes"):
            await ps.module("torch.nn.Linear", 251, 250, name="net3", replace=True)
        assert (await ps.attach("net3")).owner, "what could not be replaced stays"
        await ps.module("torch.nn.Linear", 248, 250, name="net3", replace=True)
    async with identities.connect(limited, "bert") as ps:
        await asyncio.gather(*(ps.module(*LINEAR, name=f"of bert {number}") for number in range(2)))
        with pytest.raises(tc.errors.QuotaError, match=r"the namespace 'default' .* objects in \[namespace.default\]"):
            await ps.module(*LINEAR)


async def test_what_snapshots_have_counts(limited: Server, identities: Identities) -> None:
    async with identities.connect(limited, "anna") as ps:
        net = await ps.module("torch.nn.Linear", 499, 250, name="net")  # 500,000 bytes
        pinned = await ps.snapshot("monday", [net])
        with pytest.raises(tc.errors.QuotaError, match=r"1,000,000 of object_bytes, uses 1,000,000"):
            await ps.snapshot("one-more", [net])
        await pinned.remove()
        await ps.snapshot("one-more", [net])


async def test_objects_that_are_made_at_once_stay_below_the_quota(limited: Server, identities: Identities) -> None:
    async with identities.connect(limited, "anna") as ps, identities.connect(limited, "anna") as ps2:
        made = [each.module(*LINEAR, name=f"{number}") for number, each in enumerate((ps, ps2) * 5)]
        results = await asyncio.gather(*made, return_exceptions=True)
        refused = [each for each in results if isinstance(each, tc.errors.QuotaError)]
        assert len(refused) == 6
        assert len(limited.engine.registry) == 4


async def test_objects_belong_to_who_made_them_after_a_restart(
    tmp_path: Path, identities: Identities, quota_file: QuotaFile
) -> None:
    folder = tmp_path / "data"
    start = partial(identities.serving, quotas=quota_file, data_dir=folder)
    async with start() as server, identities.connect(server, "anna") as ps:
        await ps.module(*LINEAR, name="in the checkpoint")
        await asyncio.to_thread(server.engine.checkpoints.write)
        for number in range(3):
            await ps.module(*LINEAR, name=f"in the log {number}")
    # It has ended as if it had been killed: without another checkpoint.
    async with start() as server, identities.connect(server, "anna") as ps:
        with pytest.raises(tc.errors.QuotaError, match=OBJECTS):
            await ps.module(*LINEAR)
        await ps.delete("in the checkpoint")
        await ps.module(*LINEAR)


async def test_open_passes_and_kept_results_have_quotas(limited: Server, identities: Identities) -> None:
    async with identities.connect(limited, "anna") as ps, identities.connect(limited, "anna") as ps2:
        net = await ps.module("torch.nn.Linear", 1, 1, name="net")
        same = await ps2.attach("net")
        kept = await net.remote("forward", torch.ones(30_000, 1))
        with pytest.raises(tc.errors.QuotaError, match=r"100,000 of held_bytes, uses 1\d\d,\d\d\d"):
            async with ps2.context():
                await same(torch.ones(1, 1))
        del kept
        await until(lambda: limited.engine.held.nbytes == 0)
        done = asyncio.Event()

        async def hold(ps: tc.Client, net: tc.RemoteModule) -> None:
            async with ps.context():
                await net(torch.ones(1, 1))
                await done.wait()

        held = [asyncio.create_task(hold(ps, net)), asyncio.create_task(hold(ps2, same))]
        await until(lambda: len(limited.engine.contexts) == 2)
        with pytest.raises(tc.errors.QuotaError, match="may use 2 of contexts, uses 2"):
            async with identities.connect(limited, "anna") as ps3:
                await hold(ps3, await ps3.attach("net"))
        done.set()
        await asyncio.gather(*held)
        await hold(ps, net)


async def test_what_a_pass_holds_counts_for_who_has_opened_it_here(
    limited: Server, identities: Identities, quota_file: QuotaFile
) -> None:
    quota_file.path.write_text("[identity.owner]\nheld_bytes = 100_000\n[identity.anna]\nheld_bytes = 100_000\n")
    limited.engine.quotas.look()
    x = torch.ones(30_000, 1)
    async with identities.connect(limited, "anna") as ps:
        net = await ps.module("torch.nn.Linear", 1, 1, name="net")
        stream = HandMade(await GrpcConnector(limited.address, token=identities.tokens["owner"]).connect())
        await stream.send(Frame(hello=stream.hello()))
        assert (await stream.receive()).HasField("welcome")

        async def nested(number: int, id: ContextId) -> Error:
            """The error for a call that hosted code of another owner makes in a pass; empty if there is none."""
            call = CallRequest(target=net.ref.to_message(), args=Encoder(None).encode((x,)), call=number)
            call.context.CopyFrom(id.to_message())
            await stream.send(Frame(number=number, request=Request(call=call)))
            return (await stream.receive()).reply.error

        elsewhere = ContextId(new_trainer_id(), 1)
        assert not (await nested(1, elsewhere)).message
        used = {each.section for each in limited.engine.quotas.uses() if each.name == "held_bytes" and each.used}
        assert used == {"identity.owner", "namespace.default", "all"}, "the trainer of the pass has no session here"
        assert "the identity 'owner' may use 100,000 of held_bytes" in (await nested(2, elsewhere)).message
        async with ps.context() as ctx:
            await net(x)
            assert "the identity 'anna' may use 100,000 of held_bytes" in (await nested(3, ctx.id)).message
            limited.engine.contexts.end(elsewhere)
            await until(lambda: limited.engine.held.nbytes_of(elsewhere.trainer) == 0)
            assert not (await nested(4, ContextId(ps.trainer, 1_000))).message


async def test_a_pass_whose_end_is_told_with_that_of_a_later_one_counts_no_more(
    limited: Server, identities: Identities
) -> None:
    contexts, x = limited.engine.contexts, torch.ones(1_000, 1)
    async with identities.connect(limited, "anna") as ps:
        net = await ps.module("torch.nn.Linear", 1, 1, name="net")
        stream = await HandMade.greeted(GrpcConnector(limited.address, token=identities.tokens["anna"]))

        async def ask(number: int, request: Request) -> Error:
            await stream.send(Frame(number=number, request=request))
            return (await stream.receive()).reply.error

        async def use(number: int, pass_number: int) -> str:
            call = CallRequest(target=net.ref.to_message(), args=Encoder(None).encode((x,)), call=number)
            call.context.CopyFrom(ContextId(stream.trainer, pass_number).to_message())
            return (await ask(number, Request(call=call))).message

        assert [await use(1, 1), await use(2, 2)] == ["", ""]
        assert "may use 2 of contexts, uses 2" in await use(3, 3)
        over = EndContextRequest(context=ContextId(stream.trainer, 2).to_message(), all_before=3)
        assert not (await ask(4, Request(end_context=over))).message
        assert len(contexts) == 0
        await until(lambda: limited.engine.held.nbytes_of(stream.trainer) == 0)
        assert [await use(5, 3), await use(6, 4)] == ["", ""], "both that the quota allows"
        assert "has ended" in await use(7, 1)


async def test_what_waits_in_collectives_counts_for_who_has_sent_it(limited: Server, identities: Identities) -> None:
    quotas, x = limited.engine.quotas, torch.ones(15_000)
    held = quotas.tallies(Account("anna"))[0].held
    async with identities.connect(limited, "anna") as anna, identities.connect(limited, "bert") as bert:
        one, other = await asyncio.gather(anna.communicator("team", 2, 0), bert.communicator("team", 2, 1))
        first = asyncio.ensure_future(one.all_gather(x))
        await until(lambda: limited.engine.communicators.nbytes)
        assert held.nbytes >= x.nbytes
        assert [each.shape for each in await other.all_gather(x)] == [x.shape] * 2
        await first
        await until(lambda: held.nbytes == 0)
        reduced = asyncio.ensure_future(one.all_reduce(x))
        await until(lambda: limited.engine.communicators.nbytes)
        assert held.nbytes >= x.nbytes
        with pytest.raises(tc.errors.QuotaError, match=r"'anna' may use 100,000 of held_bytes, uses 6\d,\d\d\d, and"):
            await one.all_reduce(x)
        with pytest.raises(tc.errors.UnavailableError, match="has given up"):
            await reduced
        with pytest.raises(tc.errors.UnavailableError, match="may use 100,000 of held_bytes"):
            await other.all_reduce(x)
        await until(lambda: held.nbytes == 0)
        one, other = await asyncio.gather(anna.communicator("team", 2, 0), bert.communicator("team", 2, 1))
        waiting = asyncio.ensure_future(one.broadcast(None, source=1))
        await other.broadcast(torch.ones(100_000), source=1)
        assert (await waiting).shape == (100_000,), "bert has no such quota"


async def test_a_pass_that_is_older_than_the_quota_is_ended(limited: Server, identities: Identities) -> None:
    async with identities.connect(limited, "anna") as ps:
        net = await ps.module("torch.nn.Linear", 1, 1, name="net")
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        with pytest.raises(tc.errors.ContextLostError, match="the quota context_seconds"):
            async with ps.context() as ctx:
                loss = (await net(torch.ones(1, 1))).sum()
                limited.engine.contexts.clock = lambda: time.monotonic() + 3700.0
                limited.servicer.sweep()
                await ctx.backward(loss, step=opt)


async def test_too_many_sessions_are_refused_at_once(limited: Server, identities: Identities) -> None:
    async with identities.connect(limited, "bert"), identities.connect(limited, "bert") as ps:
        began = time.monotonic()
        with pytest.raises(tc.errors.QuotaError, match=r"'bert' may use 2 of sessions, uses 2, .* \[identity.bert\]"):
            await identities.connect(limited, "bert")
        async with grpc.aio.insecure_channel(limited.address) as channel:
            told = (("authorization", f"Bearer {identities.tokens['bert']}"), ("ps-trainer", os.urandom(16).hex()))
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await OwnerStub(channel).Create(CreateRequest(class_name="torch.nn.Linear"), metadata=told)
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with identities.connect(limited, "anna"):
            with pytest.raises(tc.errors.QuotaError, match=r"all together may use 3 of streams, uses 3"):
                await identities.connect(limited, "anna")
        assert time.monotonic() - began < 40.0, "they are not tried again for a minute"
        assert len(limited.engine.sessions) == 2
        assert await ps.status()
    await until(lambda: not limited.engine.sessions.all())
    async with identities.connect(limited, "bert"), identities.connect(limited, "bert"):
        pass


async def test_tables_have_a_quota_of_rows(limited: Server, identities: Identities) -> None:
    async with identities.connect(limited, "anna") as ps:
        first = await ps.table("first", 2, tc.tables.SGD(0.1))
        second = await ps.table("second", 2, tc.tables.SGD(0.1))
        async with ps.context():
            await first(torch.arange(5))
            with pytest.raises(tc.errors.QuotaError, match=r"may use 8 of table_rows, uses 8\. Remove"):
                await second(torch.arange(4))
            await second(torch.arange(3))
    async with identities.connect(limited, "bert") as ps:
        other = await ps.table("other", 2, tc.tables.SGD(0.1))
        async with ps.context():
            await other(torch.arange(100))


async def test_a_changed_file_counts_at_once_and_a_bad_one_not(
    limited: Server, identities: Identities, quota_file: QuotaFile, caplog: pytest.LogCaptureFixture
) -> None:
    quotas = limited.engine.quotas
    async with identities.connect(limited, "anna") as ps:
        quota_file.path.write_text("[identity.anna]\nobjects = 1")
        quotas.look()
        await ps.module("torch.nn.Linear", 1, 1, name="net")
        quota_file.path.write_text("[identity.anna]\nobjets = 2")
        quotas.look()
        quotas.look()
        with pytest.raises(tc.errors.QuotaError, match="may use 1 of objects"):
            await ps.module("torch.nn.Linear", 1, 1)
        assert caplog.text.count("unknown quota 'objets'") == 1


async def test_quotas_are_those_of_one_owner(identities: Identities, quota_file: QuotaFile) -> None:
    async with (
        identities.serving(quotas=quota_file) as first,
        identities.serving("ps1", quotas=quota_file) as second,
        tc.connect(first.address, second.address, token=identities.tokens["anna"]) as ps,
    ):
        for owner in ("ps0", "ps1"):
            made = [ps.module("torch.nn.Linear", 1, 1, name=f"{number}", owner=owner) for number in range(6)]
            results = await asyncio.gather(*made, return_exceptions=True)
            assert sum(isinstance(each, tc.errors.QuotaError) for each in results) == 2


async def test_the_status_tells_what_is_used(limited: Server, identities: Identities) -> None:
    async with identities.connect(limited, "anna") as ps:
        await ps.module(*LINEAR, name="net")
        told = {(each.section, each.name): (each.used, each.quota) for each in (await ps.status()).quotas}
        assert told["identity.anna", "object_bytes"] == (250_000, 1_000_000)
        assert told["namespace.default", "objects"] == (1, 6)
        assert told["namespace.default", "sessions"] == (1, None)
        assert told["all", "streams"] == (1, 3)
        families = {each.name: each for each in OwnerCollector(limited.engine).collect()}
        (used,) = (
            each.value
            for each in families["ps_quota_used"].samples
            if each.labels == {"section": "identity.anna", "quota": "object_bytes"}
        )
        assert used == 250_000
