"""What a right is for: one namespace and not the whole owner, one session and not another, and not for ever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import aiohttp
import grpc
import pytest
import torch
from torch import nn

import trainer_client as tc
from ps_service.access import roles
from ps_service.access.identities import Asker, Identity
from ps_service.quotas.accounts import Account
from ps_service.quotas.quota import QuotaFile
from ps_service.requests.context import RequestContext
from ps_service.requests.operations import OPERATIONS
from ps_service.rpc.intake import Intake
from ps_service.rpc.unary_budget import UnaryBudget
from ps_service.server import Server
from ps_service.sessions.reply_cache import Answer
from ps_wire.connections.frames import Packet
from ps_wire.limits import MIB, Limits
from ps_wire.refs import new_trainer_id
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame, Reply, Request
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from ps_wire.v1.values_pb2 import Value
from tests.integration.access.identities import Identities
from tests.integration.support import COUNTER, HandMade, engine
from tests.waiting import until
from trainer_client.transport.grpc_stream import GrpcConnector


async def asked(stream: HandMade, number: int, request: Request) -> Reply:
    await stream.send(Frame(number=number, request=request))
    return (await stream.receive()).reply


async def stream_of(server: Server, identities: Identities, name: str, **hello: Any) -> HandMade:
    made = HandMade(await GrpcConnector(server.address, token=identities.tokens[name]).connect())
    made.trainer = hello.pop("trainer", made.trainer)
    await made.send(Frame(hello=made.hello(**hello)))
    assert (await made.receive()).HasField("welcome")
    return made


def unary(identities: Identities, name: str, trainer: bytes, namespace: str = "") -> Any:
    told = [("authorization", f"Bearer {identities.tokens[name]}"), ("ps-trainer", trainer.hex())]
    return (*told, ("ps-namespace", namespace)) if namespace else tuple(told)


async def test_an_object_is_not_had_by_asking_whether_it_has_come(identities: Identities, tmp_path: Any) -> None:
    identities.add("mallory", "reader", "trainer")
    async with (
        identities.serving(data_dir=tmp_path, durability="always") as server,
        identities.connect(server, "trainer") as ps,
    ):
        secret = await ps.create(COUNTER)
        stream = await stream_of(server, identities, "mallory")
        accept = pb.MoveRequest(action=pb.MOVE_ACCEPT, object_id=secret.ref.object_id)
        reply = await asked(stream, 1, Request(move=accept))
        assert reply.error.code == ErrorCode.ERROR_PERMISSION_DENIED and not reply.HasField("move")
        call = pb.CallRequest(target=secret.ref.to_message(), method="get")
        assert (await asked(stream, 2, Request(call=call))).error.code == ErrorCode.ERROR_PERMISSION_DENIED


async def test_an_admin_of_a_namespace_is_none_of_the_owner(identities: Identities, tmp_path: Any) -> None:
    identities.add("sam", namespaces=(("search", ("admin",)),))
    async with identities.serving(data_dir=tmp_path, durability="always") as server:
        async with (
            identities.connect(server, "sam", namespace="search") as sam,
            identities.connect(server, "trainer") as ps,
        ):
            await ps.module(nn.Linear, 2, 1, name="net")
            stream = await stream_of(server, identities, "sam", namespace="search")
            requests = [
                Request(sessions=pb.SessionsRequest()),
                Request(evict=pb.EvictRequest(unused_seconds=0.0)),
                Request(checkpoint=pb.CheckpointRequest()),
                Request(move=pb.MoveRequest(action=pb.MOVE_PLAN)),
                Request(move=pb.MoveRequest(action=pb.MOVE_BEGIN, move="m", owner="x", names=["net"])),
            ]
            for number, request in enumerate(requests, 1):
                error = (await asked(stream, number, request)).error
                assert error.code == ErrorCode.ERROR_PERMISSION_DENIED, request
                assert "has the role admin in one alone. Ask for a token with it in 'default'" in error.message
            await sam.create(COUNTER, name="counter")
            await sam.delete("counter")
        stream = await stream_of(server, identities, "admin")
        assert (await asked(stream, 1, Request(sessions=pb.SessionsRequest()))).sessions.owner == "ps0"


async def test_the_answer_of_a_push_brings_states_to_the_role_bulk_alone(
    guarded: Server, identities: Identities
) -> None:
    identities.add("copier", "trainer", "bulk")
    guarded.engine.access.look()
    for name, may in (("trainer", False), ("copier", True)):
        async with identities.connect(guarded, name) as ps:
            net = await ps.module(nn.Linear, 2, 1)
            opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
            ref = opt.remotes["ps0"].handle.ref
            push = pb.PushRequest(target=net.ref.to_message(), optimizer=ref.to_message(), pull=pb.PullRequest())
            push.gradients.list.SetInParent()
            push.pull.reads = pb.READS_CONSISTENT
            stream = await stream_of(guarded, identities, name)
            reply = await asked(stream, 1, Request(push=push))
            assert (reply.error.code == ErrorCode.ERROR_PERMISSION_DENIED) is not may, reply
            assert len(reply.push.pull.positions) == (2 if may else 0)
            await stream.connection.close()


async def test_only_owners_say_that_others_wait_for_their_requests(guarded: Server, identities: Identities) -> None:
    for name in ("reader", "trainer", "admin", "owner"):
        stream = await stream_of(guarded, identities, name)
        session = guarded.engine.sessions.get(stream.trainer)
        assert session is not None and session.may_nest is (name == "owner")
        await stream.connection.close()
    owner = engine(limits=Limits(max_session_bytes=MIB))
    for may_nest in (True, False):
        session = owner.sessions.open(new_trainer_id())
        session.may_nest, intake = may_nest, Intake(owner, session)
        first, second = (
            intake.take(Packet(Frame(number=n, request=Request(depth=n - 1), payload_bytes=MIB), (memoryview(b"x"),)))
            for n in (1, 2)
        )
        assert first is None and (second is None) is may_nest, "else it waits for room"
        intake.close()
        await asyncio.gather(*([] if second is None else [second]), return_exceptions=True)  # type: ignore[list-item]


def test_unary_answers_have_a_bound_for_each_identity() -> None:
    owner = engine(limits=Limits(max_session_bytes=MIB))
    budget, done = UnaryBudget(owner), list[Any]()
    context: Any = SimpleNamespace(add_done_callback=done.append)
    answer = Answer(Frame(reply=Reply(call=pb.CallReply(result=Value(text="x" * 600_000)))), [], 0, [])
    asker = Asker(Identity("mallory", roles.TRAINER, "by its token"), new_trainer_id())
    keys = {budget.key_of(new_trainer_id(), asker) for _ in range(3)}
    assert len(keys) == 1, "ids that it has made up"
    (key,) = keys
    budget.count_answer(key, answer, context)
    with pytest.raises(tc.errors.OverloadedError, match="has no space beside them"):
        budget.count_answer(key, answer, context)
    assert owner.budget.unsent == answer.reply.ByteSize()
    for each in done:
        each(None)
    budget.count_answer(key, answer, context)
    trainer = new_trainer_id()
    owner.sessions.open(trainer)
    assert budget.key_of(trainer, asker) == trainer


async def test_unary_requests_without_a_session_count_for_the_quota_of_their_identity(
    identities: Identities, tmp_path: Any
) -> None:
    (tmp_path / "quotas").write_text("[identity.mallory]\nrequest_bytes = 1000\n")
    quotas = QuotaFile(tmp_path / "quotas")
    async with identities.serving(quotas=quotas) as server:
        budget = UnaryBudget(server.engine)
        for name in ("mallory", "other"):
            asker = Asker(Identity(name, roles.TRAINER, "by its token"), new_trainer_id())
            key = budget.key_of(asker.trainer, asker)
            request = pb.CallRequest(function="x" * 100_000)
            with budget.counted(key, asker, OPERATIONS["call"], request):  # any may run if it is the only one
                if name == "other":
                    with budget.counted(key, asker, OPERATIONS["call"], request):
                        continue
                with (
                    pytest.raises(tc.errors.QuotaError, match="the identity 'mallory' may use 1,000 of request_bytes"),
                    budget.counted(key, asker, OPERATIONS["call"], request),
                ):
                    raise AssertionError("it was let in")


async def test_rights_are_for_the_namespace_of_the_session(identities: Identities) -> None:
    identities.add("sam", namespaces=(("search", ("trainer",)), ("ads", ("reader",))))
    identities.add("anna", namespaces=(("ads", ("trainer",)),))
    async with identities.serving() as server, identities.connect(server, "anna", namespace="ads") as anna:
        await anna.snapshot("monday", [await anna.module(nn.Linear, 2, 1, name="net")])
        stream = await stream_of(server, identities, "sam", namespace="ads")
        async with grpc.aio.insecure_channel(server.address) as channel:
            remove = OwnerStub(channel).Snapshot(
                pb.SnapshotRequest(name="monday", remove=True),
                metadata=unary(identities, "sam", stream.trainer, "search"),
            )
            assert await remove.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "is in the namespace 'ads'" in str(await remove.details())
        assert [each.name for each in (await anna.snapshot("monday")).objects] == ["net"]


@pytest.fixture
def in_two_namespaces(identities: Identities) -> None:
    """sam may change something in `search`, and only read in `ads`, where anna may change something."""
    identities.add("sam", namespaces=(("search", ("trainer",)), ("ads", ("reader",))))
    identities.add("anna", namespaces=(("ads", ("trainer",)),))


@pytest.mark.usefixtures("in_two_namespaces")
async def test_a_session_with_a_waiting_request_stays_in_its_namespace(identities: Identities) -> None:
    async with identities.serving() as server, identities.connect(server, "anna", namespace="ads") as anna:
        await anna.snapshot("monday", [await anna.module(nn.Linear, 2, 1, name="net")])
        stream = await stream_of(server, identities, "sam", namespace="search")
        remove = pb.SnapshotRequest(name="monday", remove=True)
        await stream.send(Frame(number=2, request=Request(snapshot=remove, after=[1])))  # and 1 comes later
        assert (await asked(stream, 3, Request(status=pb.StatusRequest()))).status.owner == "ps0"
        other = HandMade(await GrpcConnector(server.address, token=identities.tokens["sam"]).connect())
        await other.send(Frame(hello=other.hello(trainer=stream.trainer, namespace="ads")))
        refused = (await other.receive()).refusal.error
        assert refused.code == ErrorCode.ERROR_INVALID_ARGUMENT, "or the request would be run in the other one"
        assert "has requests in the namespace 'search' that have no answer yet" in refused.message
        await stream.connection.close()
        await until(lambda: server.engine.sessions.is_away(stream.trainer))
        async with grpc.aio.insecure_channel(server.address) as channel:
            attach = OwnerStub(channel).Attach(
                pb.AttachRequest(name="net"), metadata=unary(identities, "sam", stream.trainer, "ads")
            )
            assert await attach.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "has requests in the namespace 'search'" in str(await attach.details())
        stream = await stream_of(server, identities, "sam", trainer=stream.trainer, namespace="search")
        await stream.send(Frame(number=1, request=Request(status=pb.StatusRequest())))
        replies = [await stream.receive() for _ in range(2)]
        assert [each.number for each in replies] == [1, 2] and not any(each.reply.HasField("error") for each in replies)
        assert [each.name for each in (await anna.snapshot("monday")).objects] == ["net"]
        stream = await stream_of(server, identities, "sam", trainer=stream.trainer, namespace="ads")
        removed = await asked(stream, 4, Request(snapshot=remove))
        assert removed.error.code == ErrorCode.ERROR_PERMISSION_DENIED, "it may move now that nothing waits"


def test_what_a_request_makes_counts_where_it_was_admitted() -> None:
    owner, sam = engine(), Identity("sam", roles.TRAINER, "by its token")
    session = owner.sessions.open(new_trainer_id(), sam)
    owner.sessions.enter(session, sam, "search")
    ctx = RequestContext(owner, session.trainer)
    ctx.asker = session.asker
    owner.sessions.enter(session, sam, "ads")
    assert ctx.account == Account("sam", "search"), "as of a request that was given up and still runs"
    owner.sessions.end(session)
    assert ctx.account == Account("sam", "search")


async def test_an_open_page_ends_with_its_token(identities: Identities) -> None:
    token = identities.add("looking", "reader")
    headers = {"authorization": f"Bearer {token}"}
    async with identities.serving(http="127.0.0.1:0") as server, aiohttp.ClientSession() as http:
        async with http.get(f"{server.http_url}/messages", headers=headers) as answer:
            assert answer.status == 200 and await answer.content.readline()
            identities.file.revoke("looking")
            server.engine.access.look()
            async with asyncio.timeout(60):
                while await answer.content.readline():
                    pass
        async with http.get(f"{server.http_url}/messages", headers=headers) as answer:
            assert answer.status == 401


async def test_names_of_other_namespaces_are_no_hints(identities: Identities) -> None:
    identities.add("anna", namespaces=(("team-a", ("trainer",)),))
    identities.add("sam", namespaces=(("team-b", ("trainer",)),))
    async with (
        identities.serving() as server,
        identities.connect(server, "anna", namespace="team-a") as anna,
        identities.connect(server, "sam", namespace="team-b") as sam,
    ):
        await anna.create(COUNTER, name="counter")
        with pytest.raises(tc.errors.UnknownNameError) as caught:
            await sam.attach("counter")
        assert "did you mean" not in str(caught.value)
        with pytest.raises(tc.errors.UnknownNameError, match=r"did you mean 'team-a::counter'\?"):
            await anna.attach("countes")


async def test_an_id_that_begins_like_anothers_shows_nothing_of_it(identities: Identities) -> None:
    identities.add("mallory", "trainer")
    async with identities.serving() as server, identities.connect(server, "trainer") as ps:
        counter = await ps.create(COUNTER)
        with pytest.raises(tc.errors.RemoteError):
            await counter.fail("a secret")
        (session,) = server.engine.sessions.all()
        assert any("a secret" in each.text for each in (await ps.status(events=1000)).events)
        stream = await stream_of(server, identities, "mallory", trainer=session.trainer[:4] + bytes(12))
        status = (await asked(stream, 1, Request(status=pb.StatusRequest(events=1000)))).status
        assert status.owner == "ps0" and not any("a secret" in each.text for each in status.events)
