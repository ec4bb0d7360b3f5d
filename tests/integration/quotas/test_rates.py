"""Requests wait, or are refused, if an identity asks too often, for too much work, or for too much at once."""

from __future__ import annotations

import asyncio
import os

import grpc
import pytest
import torch

import trainer_client as tc
from ps_service.quotas.quota import QuotaFile
from ps_service.server import Server
from ps_wire.v1.operations_pb2 import AttachRequest
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.integration.access.identities import Identities


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
    limited.engine.quotas.charge(b"", "bert", 100.0)
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


async def test_large_messages_are_refused_before_they_have_arrived(limited: Server, identities: Identities) -> None:
    async with identities.connect(limited, "anna") as ps:
        net = await ps.module("torch.nn.Linear", 1, 1, name="net")
        with pytest.raises(tc.errors.QuotaError, match="may use 100,000 of message_bytes, uses 4,000,000"):
            await net(torch.ones(1_000_000, 1))
        assert (await net(torch.ones(20_000, 1))).shape == (20_000, 1)
