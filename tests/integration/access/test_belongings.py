"""Sessions, passes and objects belong to an identity, and names to a namespace."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_service.server import Server
from ps_wire.codec.values import Encoder
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame, Request
from ps_wire.v1.operations_pb2 import (
    BackwardRequest,
    CallRequest,
    EndContextRequest,
    GradientsRequest,
    NormRequest,
    OptimizerRequest,
    ScaleRequest,
    StateRequest,
    StepRequest,
)
from ps_wire.v1.values_pb2 import DType, TableName
from tests.integration.access.identities import Identities
from tests.integration.support import COUNTER, HandMade
from trainer_client.transport.grpc_stream import GrpcConnector

SCORED = "tests.table_models.Scored"


class Forged:
    """Is sent as the table of another team."""

    def __ps_table__(self) -> TableName:
        return TableName(name="search::users", dim=4, dtype=DType.DTYPE_FLOAT32)


@pytest.fixture
async def two_teams(identities: Identities) -> AsyncIterator[Server]:
    """An owner with one trainer in the namespace ads, another in search, and one in both."""
    identities.add("anna", namespaces=(("ads", ("trainer",)),))
    identities.add("sam", namespaces=(("search", ("trainer", "bulk")),))
    identities.add("both", namespaces=(("ads", ("reader",)), ("search", ("trainer",))))
    async with identities.serving() as server:
        yield server


async def test_nobody_uses_passes_and_objects_of_another(identities: Identities) -> None:
    mallory = identities.add("mallory", "trainer", "bulk")
    async with identities.serving() as server, identities.connect(server, "trainer") as ps:
        secret = await ps.module("torch.nn.Linear", 2, 1)
        opt = await ps.optimizer(optim.SGD, secret.parameters(), lr=0.1)
        async with ps.context() as ctx:
            loss = (await secret(torch.ones(1, 2))).sum()
            stream = await HandMade.greeted(GrpcConnector(server.address, token=mallory))
            sgd = next(each.ref for each in server.engine.registry.objects() if each.class_name.endswith("SGD"))
            target, context = secret.ref.to_message(), ctx.message
            requests = [
                Request(backward=BackwardRequest(context=context)),
                Request(gradients=GradientsRequest(context=context)),
                Request(norm=NormRequest(context=context)),
                Request(scale=ScaleRequest(context=context, factor=2.0)),
                Request(end_context=EndContextRequest(context=context)),
                Request(step=StepRequest(context=context, optimizer=sgd.to_message())),
                Request(step=StepRequest(optimizer=sgd.to_message())),
                Request(call=CallRequest(target=target, context=context)),
                Request(call=CallRequest(target=target)),
                Request(
                    call=CallRequest(function="torch.neg", args=Encoder(None, lambda _: target).encode((object(),)))
                ),
                Request(state=StateRequest(target=target)),
                Request(optimizer=OptimizerRequest(attach=sgd.to_message())),
            ]
            for number, request in enumerate(requests, 1):
                await stream.send(Frame(number=number, request=request))
                error = (await stream.receive()).reply.error
                assert error.code == ErrorCode.ERROR_PERMISSION_DENIED, (request, error)
                assert "another identity than 'mallory'" in error.message
            await stream.connection.close()
            await ctx.backward(loss, step=opt)


async def test_trainers_of_one_identity_share_objects(guarded: Server, identities: Identities) -> None:
    async with identities.connect(guarded, "trainer") as one, identities.connect(guarded, "trainer") as other:
        counter = await one.create(COUNTER)
        assert await (await other.attach(str(counter.ref))).add() == 1
        assert await counter.add() == 2


async def test_teams_have_names_of_their_own(two_teams: Server, identities: Identities) -> None:
    async with AsyncExitStack() as stack:

        async def trainer(name: str, namespace: str) -> tc.Client:
            return await stack.enter_async_context(identities.connect(two_teams, name, namespace=namespace))

        anna, sam = await trainer("anna", "ads"), await trainer("sam", "search")
        nets = [await each.module("torch.nn.Linear", 2, 1, name="net", seed=i) for i, each in enumerate((anna, sam))]
        assert [each.name for each in nets] == ["net", "net"]
        assert not torch.equal(await nets[0](torch.ones(2)), await nets[1](torch.ones(2)))
        optimizers = [
            await each.optimizer(optim.SGD, net.parameters(), lr=0.1)
            for each, net in zip((anna, sam), nets, strict=True)
        ]
        async with anna.context() as ctx:
            await ctx.backward((await nets[0](torch.ones(2))).sum(), step=optimizers[0])
        tables = [await each.table("users", dim=4, optimizer=tc.tables.SGD(lr=0.1)) for each in (anna, sam)]
        rows = [await each(torch.tensor([7])) for each in tables]
        assert [each.shape for each in rows] == [(1, 4), (1, 4)]
        scored = await anna.module(SCORED, tables[0], 4)
        assert torch.equal(await scored(torch.tensor([7])), await scored.of_rows(rows[0]))
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"'search::users' names another namespace"):
            await anna.module(SCORED, Forged(), 4)
        assert {each.name for each in two_teams.engine.registry.objects()} >= {
            *("ads::net", "search::net", "ads::users", "search::users", "ads::net.optimizer"),
        }
        status = await anna.status()
        assert {each.name for each in status.objects} == {"ads::net", "ads::users"}
        assert len(status.trainers) == 1 and {each.name for each in status.tables} == {"ads::users"}
        # What another team has is not found, whichever way it is asked for.
        for asked in (anna.attach("search::net"), anna.delete("search::net")):
            with pytest.raises((tc.errors.InvalidArgumentError, tc.errors.PermissionDeniedError)):
                await asked
        with pytest.raises(tc.errors.PermissionDeniedError, match=r"belongs to the namespace 'search'"):
            await anna.attach(str(nets[1].ref))
        reader = await trainer("both", "ads")
        net = await reader.attach("net")
        with pytest.raises(tc.errors.PermissionDeniedError, match="needs the role trainer"):
            await reader.create(COUNTER, name="counter")
        assert torch.equal(await net.eval()(torch.ones(2)), await nets[0](torch.ones(2)))


async def test_a_namespace_is_for_those_who_have_a_role_in_it(two_teams: Server, identities: Identities) -> None:
    for name, namespace in (("anna", "search"), ("anna", ""), ("sam", "ads"), ("trainer", "ads"), ("bulk", "ads")):
        with pytest.raises(tc.errors.PermissionDeniedError, match=f"in the namespace '{namespace or 'default'}'"):
            await identities.connect(two_teams, name, namespace=namespace)
    with pytest.raises(tc.errors.InvalidArgumentError, match="is no namespace"):
        await identities.connect(two_teams, "anna", namespace="a::b")
    async with (
        identities.connect(two_teams, "anna", namespace="ads") as anna,
        identities.connect(two_teams, "admin") as admin,
    ):
        await anna.create(COUNTER, name="counter")
        assert {each.name for each in (await admin.status()).objects} == {"ads::counter"}
        assert await (await admin.attach("ads::counter")).add() == 1
        await admin.delete("ads::counter")


async def test_namespaces_also_part_names_without_tokens(owner: Server) -> None:
    async with (
        tc.connect(owner.address, namespace="ads") as ads,
        tc.connect(owner.address) as default,
    ):
        counters = [await each.create(COUNTER, name="counter") for each in (ads, default)]
        assert [await each.add() for each in counters] == [1, 1]
        assert {each.name for each in owner.engine.registry.objects()} == {"ads::counter", "counter"}


async def test_who_only_reads_adds_no_rows(identities: Identities) -> None:
    async with (
        identities.serving() as server,
        identities.connect(server, "trainer") as ps,
        identities.connect(server, "reader") as reading,
    ):
        made = await ps.table("items", dim=4, optimizer=tc.tables.SGD(lr=0.1))
        items = await reading.table("items")
        assert (await items(torch.arange(3))).shape == (3, 4)
        async with reading.context():
            with pytest.raises(tc.errors.PermissionDeniedError, match="call needs the role trainer"):
                await items(torch.arange(3))
        # As a program does that sends more than a trainer of ours.
        shard, parts = items.known_shards["ps0"], [(None, torch.arange(3), None, None)]
        with pytest.raises(tc.errors.RemoteError, match="unexpected keyword argument 'recorded'"):
            await shard.call("look_up", parts, recorded=True)
        with pytest.raises(tc.errors.PermissionDeniedError):
            await shard.call("look_up_recorded", parts, [])
        assert await made.size() == 0
