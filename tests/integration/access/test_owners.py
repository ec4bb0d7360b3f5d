"""Owners of a group show each other who they are; sessions keep their identity over a restart."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import trainer_client as tc
from ps_service import hosted, remote
from ps_service.engine import Engine
from ps_service.server import Server
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame
from tests import hosted_models
from tests.allowed import allowed
from tests.integration.access.identities import Identities
from tests.integration.support import HandMade
from trainer_client import rpc
from trainer_client.rpc.current import set_agent
from trainer_client.rpc.joining import join
from trainer_client.session.settings import Settings
from trainer_client.transport.grpc_stream import GrpcConnector


@hosted
class Guarded:
    """Its methods ask for roles."""

    @remote(role="reader")
    def look(self) -> int:
        return 1

    @remote(role="admin")
    def change(self) -> int:
        return 2


async def test_hosted_methods_ask_for_a_role(identities: Identities) -> None:
    async with identities.serving() as server:
        server.engine.allowlist.allow(Guarded)
        name = f"{__name__}.Guarded"
        async with identities.connect(server, "admin") as admin, identities.connect(server, "reader") as reader:
            assert await (await admin.create(name, name="guarded")).change() == 2
            seen = await reader.attach("guarded")
            assert await seen.look() == 1
            with pytest.raises(tc.errors.PermissionDeniedError, match="the method change needs the role admin"):
                await seen.change()
    with pytest.raises(ValueError, match="there is no role 'king'"):
        remote(role="king")  # type: ignore[call-overload]


async def test_only_owners_enter_a_group(identities: Identities, tmp_path: Path) -> None:
    own = tmp_path / "own"
    async with identities.serving("ps0") as first, identities.serving("ps1") as second:
        keeper = await join(first, Settings(token=identities.tokens["owner"]))
        try:
            own.write_text(identities.tokens["trainer"])
            with pytest.raises(tc.errors.PermissionDeniedError, match="register needs the role owner"):
                await join(second, Settings(token=own), first.address)
        finally:
            await keeper.stop()
            set_agent(None)


async def test_a_session_keeps_its_identity_over_a_restart(identities: Identities, tmp_path: Path) -> None:
    mallory = identities.add("mallory", "trainer")

    def owner() -> Server:
        engine = Engine("ps0", allowed(hosted_models), data_dir=tmp_path / "data", tokens=identities.file)
        return Server(engine, direct_port="off")

    trainer = os.urandom(16)
    async with owner() as first:
        stream = HandMade(await GrpcConnector(first.address, token=identities.tokens["trainer"]).connect())
        await stream.send(Frame(hello=stream.hello(trainer=trainer)))
        incarnation = (await stream.receive()).welcome.incarnation
        await stream.connection.close()
        await first.drain(5.0)
    async with owner() as second:
        assert [each.identity.name for each in second.engine.sessions.all()] == ["trainer"]
        for token, may in ((mallory, False), (identities.tokens["trainer"], True)):
            stream = HandMade(await GrpcConnector(second.address, token=token).connect())
            await stream.send(Frame(hello=stream.hello(trainer=trainer, incarnation=incarnation)))
            answer = await stream.receive()
            assert answer.welcome.resumed is may
            assert may or answer.refusal.error.code == ErrorCode.ERROR_PERMISSION_DENIED
            await stream.connection.close()


async def test_a_program_joins_a_group_with_the_role_of_an_owner_only(identities: Identities) -> None:
    async with identities.serving() as server:
        server.engine.directory.begin(0)
        for token, error, why in (
            (None, tc.errors.UnauthenticatedError, "give tc.connect or rpc.init_rpc a token="),
            (identities.tokens["trainer"], tc.errors.PermissionDeniedError, "register needs the role owner"),
        ):
            with pytest.raises(error, match=why):
                await asyncio.to_thread(rpc.init_rpc, "worker", directory=server.address, token=token)
        with pytest.raises(tc.errors.InvalidArgumentError, match="token= has no token"):
            rpc.init_rpc("worker", directory="self", token="two words")
        with pytest.raises(tc.errors.InvalidArgumentError, match="cannot be read"):
            rpc.init_rpc("worker", directory="self", token_file="nowhere/tokens")
