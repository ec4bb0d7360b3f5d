"""The audit log of owners: a whole story, who is named in it, and what never is."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.cli import probe
from ps_service.engine import Engine
from ps_service.measures.audit_log import AuditLog
from ps_service.server import Server
from ps_wire.connections.frames import Packet
from ps_wire.v1.frames_pb2 import Frame
from ps_wire.v1.operations_pb2 import CheckpointRequest, EvictRequest
from tests import hosted_models
from tests.allowed import allowed
from tests.conftest import StartProcess
from tests.integration.tls.authority import Authority
from trainer_client.transport.grpc_stream import GrpcConnector


def lines(place: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in place.read_text("utf-8").splitlines()]


async def train(address: str, tls: tc.TLS) -> bytes:
    """Makes a module, changes what is there, and deletes it; returns the id of the trainer."""
    async with tc.connect(address, tls=tls, shared_memory=False) as ps:
        net = await ps.module("torch.nn.Linear", 2, 2, name="net", seed=1)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, name="opt")
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.tensor([[0.123456, 7.654321]]))).sum(), step=opt)
        await net.load_state_dict(await net.state_dict())
        await opt.set_policy(tc.policies.Sync(1))
        await ps.delete("opt")
        return ps.trainer


async def test_a_story_names_who_did_what_and_no_secrets(tmp_path: Path) -> None:
    authority, place = Authority(tmp_path), tmp_path / "audit.jsonl"
    alice, operator = authority.trainer("alice"), authority.trainer("operator")
    engine = Engine("ps0", allowed(hosted_models), data_dir=tmp_path / "data")
    with closing(AuditLog(str(place), "ps0")) as audit:
        engine.events.audit = audit
        async with Server(engine, direct_port=0, tls=authority.server(asks=True)) as server:
            trainer = await train(server.address, alice)

            def ask(request: Any) -> Any:
                return probe.ask(server.address, request, 30.0, operator)

            await asyncio.to_thread(ask, CheckpointRequest())
            async with tc.connect(server.address, tls=alice) as ps:
                await asyncio.to_thread(ask, EvictRequest(session=ps.trainer.hex()[:8]))
            with pytest.raises(tc.errors.UnavailableError):
                await tc.connect("ps1", directory=lambda _: server.address, tls=alice, connect_timeout=0.0)
            await asyncio.to_thread(knock, server.servicer.direct.port)
            await server.quiet(0.0)
    found = lines(place)
    by = [(each["kind"], each.get("certificate", ""), each.get("subject", "")) for each in found]
    assert [each for each in by if each[0] not in ("joined", "left")] == [
        ("started", "", ""),
        ("made", "alice.example", "net"),
        ("made", "alice.example", "opt"),
        ("loaded", "alice.example", "net"),
        ("policy", "alice.example", "opt"),
        ("deleted", "alice.example", "opt"),
        ("checkpoint", "operator.example", ""),
        ("ended", "operator.example", ""),
        ("refused", "alice.example", ""),
        ("refused", "", ""),
        ("draining", "", ""),
        ("drained", "", ""),
    ]
    assert by[1][:2] == ("joined", "alice.example") and ("left", "alice.example", "") in by
    refused = [each for each in found if each["kind"] == "refused"]
    assert "this is owner 'ps0', and not 'ps1'" in refused[0]["event"]
    assert all(each["address"].startswith("127.0.0.1:") for each in (*refused, found[1], found[2]))
    text = place.read_text("utf-8")
    for secret in (trainer.hex(), "0.12345", "7.6543", authority.key_of("alice").read_text().splitlines()[1]):
        assert secret not in text


def knock(port: int) -> None:
    """Comes to the direct port without TLS."""
    # The owner reads no more than it takes to see that, and the kernel tells of what is left unread.
    with socket.create_connection(("127.0.0.1", port)) as sock, suppress(ConnectionResetError):
        sock.sendall(b"ps-wire1" + bytes(32))
        while sock.recv(64):
            pass


async def test_a_move_of_objects_names_who_asked_for_it_on_both_owners(tmp_path: Path) -> None:
    authority, places = Authority(tmp_path), [tmp_path / f"audit{place}.jsonl" for place in range(2)]
    operator = authority.trainer("operator")
    async with AsyncExitStack() as stack:
        servers = []
        for name, place in zip(("ps0", "ps1"), places, strict=True):
            engine = Engine(name, allowed(hosted_models), data_dir=tmp_path / name)
            engine.events.audit = stack.enter_context(closing(AuditLog(str(place), name)))
            server = Server(engine, tls=authority.server(asks=True), durability="interval:1")
            servers.append(await stack.enter_async_context(server))
        async with tc.connect(*(each.address for each in servers), tls=operator) as ps:
            await ps.module("torch.nn.Linear", 2, 2, name="net", owner="ps0")
            await ps.move("net", to="ps1")
    for place, text in zip(places, ("'net' moved to owner 'ps1'", "'net' came from owner 'ps0'"), strict=True):
        (moved,) = [each for each in lines(place) if each["kind"] == "moved"]
        assert (moved["event"], moved["subject"], moved["certificate"]) == (text, "net", "operator.example")


async def test_a_stream_that_ends_before_it_begins_is_not_told_as_refused(tmp_path: Path) -> None:
    engine, place = Engine("ps0", allowed(hosted_models)), tmp_path / "audit.jsonl"
    async with Server(engine) as server:
        with closing(AuditLog(str(place), "ps0")) as audit:
            engine.events.audit = audit
            connection = await GrpcConnector(server.address).connect()
            await connection.close()
            wrong = await GrpcConnector(server.address).connect()
            await wrong.send(Packet(Frame(number=1)))
            assert (await wrong.receive()).frame.refusal.error.message == "a stream begins with Hello"
            await wrong.close()
    assert [each["kind"] for each in lines(place)] == ["refused"]


async def test_moves_of_rows_and_cleared_tables_are_in_it(tmp_path: Path) -> None:
    places = [tmp_path / f"audit{place}.jsonl" for place in range(2)]
    async with AsyncExitStack() as stack:
        servers = []
        for name, place in zip(("ps0", "ps1"), places, strict=True):
            engine = Engine(name, allowed(hosted_models))
            engine.events.audit = stack.enter_context(closing(AuditLog(str(place), name)))
            servers.append(await stack.enter_async_context(Server(engine)))
        async with tc.connect(*(each.address for each in servers)) as ps:
            items = await ps.table("items", 4, optimizer=tc.tables.SGD(lr=0.1), owners=["ps0"])
            async with ps.context():
                await items(torch.arange(100))
            await ps.rebalance("items")
            await items.clear()
    told = [
        [each for each in lines(place) if each.get("subject") == "items" and each["kind"] != "made"] for place in places
    ]
    kinds = [[each["kind"] for each in each_told] for each_told in told]
    assert kinds == [["moved", "loaded"]] * 2
    said = [[re.sub(" by trainer .*", "", each["event"]) for each in each_told] for each_told in told]
    assert said == [
        ["8,192 of 16,384 slots of table 'items' moved to owner 'ps1'", "all rows of table 'items' here were removed"],
        [
            "8,192 of 16,384 slots of table 'items' came from other owners",
            "all rows of table 'items' here were removed",
        ],
    ]
    assert "" not in {each["trainer"] for each in (*told[0], *told[1])}


async def test_an_owner_that_ends_has_written_all_of_it(start_process: StartProcess, tmp_path: Path) -> None:
    place = tmp_path / "audit.jsonl"
    owner = await start_process("--audit-log", str(place))
    async with tc.connect(owner.address) as ps:
        await ps.module("torch.nn.Linear", 2, 2, name="net")
    owner.process.terminate()
    assert await owner.process.wait() == 0
    assert [each["kind"] for each in lines(place)] == ["started", "joined", "made", "left", "draining", "drained"]


async def test_what_the_log_repeats_after_a_restart_is_not_told_again(tmp_path: Path) -> None:
    async def run(loads: bool) -> list[str]:
        engine = Engine("ps0", allowed(hosted_models), data_dir=tmp_path)
        async with Server(engine, durability="interval:1") as server, tc.connect(server.address) as ps:
            net = await ps.module("torch.nn.Linear", 2, 2, name="net")
            if loads:
                await net.load_state_dict(await net.state_dict())
            return [each.kind for each in engine.events.latest()]

    assert "loaded" in await run(True)
    again = await run(False)
    assert "restored" in again and "loaded" not in again
