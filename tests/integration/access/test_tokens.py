"""Owners with a file of tokens let in whom it names, on each transport, and nobody else."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import grpc
import pytest
import torch
from torch import optim

import trainer_client as tc
from ps_service.access.access import Access
from ps_service.engine import Engine
from ps_service.server import Server
from ps_wire.refs import ContextId
from ps_wire.tls import TLS
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame
from ps_wire.v1.operations_pb2 import EndContextRequest, EvictRequest, FetchRequest, ReleaseRequest, StatusRequest
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.integration.access.identities import Identities
from tests.integration.support import COUNTER, HandMade
from tests.integration.tls.authority import Authority
from tests.waiting import until
from trainer_client.transport.channels import UnaryRequests, open_channel
from trainer_client.transport.grpc_stream import GrpcConnector

TRANSPORTS = {
    "grpc": {"shared_memory": False, "direct": False},
    "direct": {"shared_memory": False},
    "shared_memory": {},
}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_trainer_trains_and_does_no_more(guarded: Server, identities: Identities, transport: str) -> None:
    async with identities.connect(guarded, "trainer", **TRANSPORTS[transport]) as ps:
        net = await ps.module("torch.nn.Linear", 4, 1, name="net")
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(2, 4))).sum(), step=opt)
        assert [each.transport for each in guarded.engine.sessions.all()] == [transport]
        assert guarded.engine.sessions.all()[0].identity.name == "trainer"
        for refused in (ps.delete("net"), net.state_dict(), net.load_state_dict({})):
            with pytest.raises(tc.errors.PermissionDeniedError, match=r"you are 'trainer' .*ps-service token add"):
                await refused
        assert (await ps.status()).objects


@pytest.mark.parametrize("token", [None, "ps_forged", "Bearer", "x" * 43])
async def test_who_is_not_known_is_told_so_at_once(guarded: Server, token: str | None) -> None:
    began = time.monotonic()
    with pytest.raises(tc.errors.UnauthenticatedError, match="ps0"):
        await tc.connect(guarded.address, token=token)
    assert time.monotonic() - began < 40.0, "it is not tried again for a minute"
    assert not guarded.engine.sessions.all()


async def test_readers_look_and_change_nothing(guarded: Server, identities: Identities) -> None:
    async with identities.connect(guarded, "trainer") as trainer, identities.connect(guarded, "reader") as reader:
        made = await trainer.module("torch.nn.Linear", 4, 1, name="net", seed=1)
        counter = await trainer.create(COUNTER, name="counter")
        net = await reader.attach("net")
        with pytest.raises(tc.errors.PermissionDeniedError, match=r"training mode, and not after eval\(\)"):
            await net(torch.ones(4))
        net.eval()
        assert torch.equal(await net(torch.ones(4)), await made(torch.ones(4)))
        other = await reader.attach("counter")
        for refused in (other.add(), reader.create(COUNTER), reader.call("torch.add", torch.ones(1), 1)):
            with pytest.raises(tc.errors.PermissionDeniedError, match="you are 'reader'"):
                await refused
        with pytest.raises(tc.errors.PermissionDeniedError, match="needs the role trainer"):
            async with reader.context():
                await net(torch.ones(4))
        assert await counter.add() == 1


async def test_a_token_that_expires_or_is_revoked_ends_its_sessions(guarded: Server, identities: Identities) -> None:
    identities.add("late", "trainer", expires=time.time() + 3600)
    guarded.engine.access.look()
    async with identities.connect(guarded, "trainer") as ps, identities.connect(guarded, "late") as late:
        held = [await ps.create(COUNTER), await late.create(COUNTER)]
        identities.file.revoke("trainer")
        guarded.engine.access.clock = lambda: time.time() + 3601
        await until(lambda: not guarded.engine.sessions.all())
        for each in held:
            with pytest.raises(tc.errors.UnauthenticatedError, match=r"revoked|expired"):
                await each.add()
    assert guarded.engine.counters.sessions_ended["revoked"] == 2
    with pytest.raises(tc.errors.UnauthenticatedError, match="revoked"):
        await identities.connect(guarded, "trainer")
    with pytest.raises(tc.errors.UnauthenticatedError, match=r"'late' expired .*ps-service token add late"):
        await identities.connect(guarded, "late")


async def test_a_file_that_is_not_valid_changes_nothing(identities: Identities) -> None:
    access = Access("ps0", identities.file)
    identities.file.path.write_text("nonsense")
    access.look()
    assert access.identify([f"Bearer {identities.tokens['admin']}"]).name == "admin"
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"tokens, line 1: it is no JSON"):
        Engine("ps0", tokens=identities.file)


async def test_tokens_of_faster_connections_belong_to_their_session(guarded: Server, identities: Identities) -> None:
    async with identities.connect(guarded, "reader", shared_memory=False) as reader:
        (session,) = guarded.engine.sessions.all()
        assert session.transport == "direct" and session.identity.name == "reader"
        with pytest.raises(tc.errors.PermissionDeniedError):
            await reader.create(COUNTER)
    with socket.create_connection(("127.0.0.1", guarded.servicer.direct.port)) as sock:
        sock.sendall(b"ps-wire1" + identities.tokens["admin"].encode()[:32])
        sock.settimeout(10.0)
        assert await asyncio.to_thread(sock.recv, 1) == b"", "no token of the file opens it"


async def test_nobody_takes_up_the_session_of_another(guarded: Server, identities: Identities) -> None:
    mallory = identities.add("mallory", "trainer")
    guarded.engine.access.look()
    async with identities.connect(guarded, "trainer") as ps:
        counter = await ps.create(COUNTER)
        stream = HandMade(await GrpcConnector(guarded.address, token=mallory).connect())
        await stream.send(Frame(hello=stream.hello(trainer=ps.trainer)))
        refusal = (await stream.receive()).refusal
        assert refusal.error.code == ErrorCode.ERROR_PERMISSION_DENIED
        assert "belongs to another identity than 'mallory'" in refusal.error.message
        await stream.connection.close()
        metadata = [("authorization", f"Bearer {mallory}"), ("ps-trainer", ps.trainer.hex()), ("ps-number", "1000000")]
        async with open_channel(guarded.address) as channel:
            for method, request in (
                ("Release", ReleaseRequest()),
                ("EndContext", EndContextRequest(context=ContextId(ps.trainer, 1).to_message())),
                ("Fetch", FetchRequest(target=counter.ref.to_message())),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await getattr(OwnerStub(channel), method)(request, metadata=metadata)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                assert "belongs to another identity" in str(caught.value.details())
        assert await counter.add() == 1


async def test_sessions_are_ended_by_admins(guarded: Server, identities: Identities) -> None:
    async with identities.connect(guarded, "trainer") as ps:
        for role, may in (("trainer", False), ("reader", False), ("admin", True)):
            unary = UnaryRequests(token=identities.tokens[role])
            try:
                asked = unary.ask(guarded.address, "Evict", EvictRequest(session=ps.trainer_name), 5.0)
                if may:
                    assert (await asked).sessions == [ps.trainer_name]
                else:
                    with pytest.raises(tc.errors.PermissionDeniedError, match="evict needs the role admin"):
                        await asked
            finally:
                await unary.close()


async def test_certificates_name_identities(identities: Identities, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identities.file.add("alice", ("trainer",), certificates=("alice.example",))
    async with identities.serving(tls=authority.server(asks=True)) as server:
        async with tc.connect(server.address, tls=authority.trainer("alice"), shared_memory=False) as ps:
            (session,) = server.engine.sessions.all()
            assert (session.identity.name, session.transport) == ("alice", "direct")
            assert await (await ps.create(COUNTER)).add() == 1
        with pytest.raises(tc.errors.UnauthenticatedError, match=r"does not know the certificate of 'bob\.example'"):
            await tc.connect(server.address, tls=authority.trainer("bob"))
        unary = UnaryRequests(TLS(authority.ca, *authority.issue("alice", "alice.example")))
        assert (await unary.ask(server.address, "Status", StatusRequest(), 5.0)).owner == "ps0"
        await unary.close()


def test_variables_and_files_have_tokens(
    identities: Identities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    for text in ("", "two words", "\x00", "ä"):
        own.write_text(text)
        with pytest.raises(tc.errors.InvalidArgumentError, match="has no token"):
            tc.connect("127.0.0.1:1", token=own)
    with pytest.raises(tc.errors.InvalidArgumentError, match="cannot be read"):
        tc.connect("127.0.0.1:1", token=tmp_path / "none")
    own.write_text("ps_secret\n")
    monkeypatch.setenv("PS_OWN_TOKEN_FILE", str(own))
    assert tc.connect("127.0.0.1:1")._settings.token == own
    monkeypatch.setenv("PS_TOKEN", "ps_other")
    connecting = tc.connect("127.0.0.1:1")
    assert connecting._settings.token == "ps_other"
    assert "ps_other" not in repr(connecting._settings)


def test_tokens_are_not_sent_in_plain_text_beyond_this_machine(identities: Identities) -> None:
    with pytest.raises(ValueError, match="read and use the tokens; serve over TLS"):
        Server(Engine("ps0", tokens=identities.file), "0.0.0.0:0")
