"""Requests wait, or are refused, if an identity asks too often, for too much work, or for too much at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import grpc
import pytest
import torch

import trainer_client as tc
from ps_service.quotas.accounts import Account
from ps_service.quotas.quota import QuotaFile
from ps_service.server import Server
from ps_wire.v1.frames_pb2 import Frame, Request
from ps_wire.v1.operations_pb2 import AttachRequest, CallRequest, StateRequest
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.integration.access.identities import Identities
from tests.integration.support import GATE, HandMade
from trainer_client.transport.grpc_stream import GrpcConnector


@pytest.fixture
def quota_file(quota_file: QuotaFile) -> QuotaFile:
    quota_file.path.write_text(
        "[identity.anna]\ncalls_per_second = 50\nburst_seconds = 0.2\nmessage_bytes = 100_000\n"
        "[identity.bert]\ncompute_per_second = 0.5\nburst_seconds = 0.1\n"
    )
    return quota_file


async def test_requests_wait_for_their_turn(limited: Server, identities: Identities) -> None:
    loop = asyncio.get_running_loop()
    async with identities.connect(limited, "anna") as ps, identities.connect(limited, "anna") as ps2:
        await ps.module("torch.nn.Linear", 1, 1, name="net")
        began = loop.time()
        await asyncio.gather(*(each.attach("net") for each in (ps, ps2) * 15))
        assert 0.3 < loop.time() - began < 5.0, "20 of 30 have to wait, for a fiftieth of a second each"
        told = (("authorization", f"Bearer {identities.tokens['anna']}"), ("ps-trainer", os.urandom(16).hex()))
        async with grpc.aio.insecure_channel(limited.address) as channel:
            attach = OwnerStub(channel).Attach
            asked = [attach(AttachRequest(name="net"), metadata=told) for _ in range(15)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [each for each in answers if isinstance(each, grpc.aio.AioRpcError)]
        assert refused, "unary calls do not wait"
        assert {each.code() for each in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert "may use 50 of calls_per_second" in str(refused[0].details())


async def test_a_request_that_would_wait_for_too_long_is_refused(limited: Server, identities: Identities) -> None:
    limited.engine.quotas.charge(Account("bert"), 100.0)
    async with identities.connect(limited, "bert") as ps:
        with pytest.raises(
            tc.errors.QuotaError, match=r"may use 0\.50 of compute_per_second, uses [\d.]+ Ask for less"
        ):
            await ps.attach("net")


async def test_work_counts_for_who_has_asked_for_it(limited: Server, identities: Identities) -> None:
    async with identities.connect(limited, "bert") as ps:
        net = await ps.module("torch.nn.Linear", 1000, 1000, name="net")
        await net(torch.ones(1000, 1000))
        tally = limited.engine.quotas.tallies(limited.engine.sessions.all()[0].account)[0]
        assert tally.section == "identity.bert"
        assert tally.used("compute_per_second") > 0


def seconds(server: Server, namespace: str) -> float:
    """What a namespace has used of compute threads."""
    return server.engine.quotas.tallies(Account("carl", namespace))[1].used("compute_per_second")


@pytest.fixture
async def of_carl(identities: Identities, quota_file: QuotaFile) -> AsyncIterator[Server]:
    """An owner with quotas, where carl has roles in the namespace `ads` alone."""
    identities.tokens["carl"] = identities.file.add("carl", (), namespaces=(("ads", ("trainer", "bulk")),))
    async with identities.serving(quotas=quota_file) as server:
        yield server


async def test_unary_reads_count_in_their_namespace(of_carl: Server, identities: Identities) -> None:
    async with (
        identities.connect(of_carl, "carl", namespace="ads") as ps,
        grpc.aio.insecure_channel(of_carl.address) as channel,
    ):
        net = await ps.module("torch.nn.Linear", 1, 1, name="net")
        told = (("authorization", f"Bearer {identities.tokens['carl']}"), ("ps-namespace", "ads"))
        await OwnerStub(channel).State(StateRequest(target=net.ref.to_message()), metadata=told)
    assert seconds(of_carl, "ads") > 0.0 == seconds(of_carl, "")


async def test_work_that_outlives_its_session_counts_in_its_namespace(of_carl: Server, identities: Identities) -> None:
    async with identities.connect(of_carl, "carl", namespace="ads") as ps:
        gate = await ps.create(GATE, name="gate")
        stream = HandMade(await GrpcConnector(of_carl.address, token=identities.tokens["carl"]).connect())
        await stream.send(Frame(hello=stream.hello(namespace="ads")))
        call = CallRequest(target=gate.ref.to_message(), method="wait")
        await stream.send(Frame(number=1, request=Request(call=call)))
        await gate.wait_for(1)
        session = of_carl.engine.sessions.get(stream.trainer)
        assert session is not None
        of_carl.engine.requests.dismiss(session)
        await gate.open()
        await asyncio.to_thread(of_carl.engine.compute.close)
    assert seconds(of_carl, "ads") > 0.0 == seconds(of_carl, "")


async def test_large_messages_are_refused_before_they_have_arrived(limited: Server, identities: Identities) -> None:
    async with identities.connect(limited, "anna") as ps:
        net = await ps.module("torch.nn.Linear", 1, 1, name="net")
        with pytest.raises(tc.errors.QuotaError, match="may use 100,000 of message_bytes, uses 4,000,000"):
            await net(torch.ones(1_000_000, 1))
        assert (await net(torch.ones(20_000, 1))).shape == (20_000, 1)
