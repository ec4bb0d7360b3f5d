"""Quotas of namespaces other than the default one, and who sees what is used."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.quotas.quota import QuotaFile
from ps_service.server import Server
from ps_wire.refs import new_trainer_id
from ps_wire.v1.frames_pb2 import Frame
from ps_wire.v1.operations_pb2 import CreateRequest, StateRequest
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests import hosted_models
from tests.allowed import allowed
from tests.integration.access.identities import Identities
from tests.integration.support import HandMade
from trainer_client.transport.grpc_stream import GrpcConnector

LINEAR = ("torch.nn.Linear", 2, 2)


async def test_a_namespace_has_a_quota_of_its_own(identities: Identities, tmp_path: Path) -> None:
    for name in ("anna", "bert"):
        identities.tokens[name] = identities.file.add(name, ("trainer",), namespaces=(("ads", ("trainer",)),))
    (tmp_path / "quotas.toml").write_text("[namespace.ads]\nobjects = 2\nsessions = 2\n")
    async with identities.serving(quotas=QuotaFile(tmp_path / "quotas.toml")) as server:
        async with (
            identities.connect(server, "anna", namespace="ads") as anna,
            identities.connect(server, "bert", namespace="ads") as bert,
        ):
            nets = [await each.module(*LINEAR, name=f"net {each.trainer.hex()}") for each in (anna, bert)]
            with pytest.raises(tc.errors.QuotaError, match=r"the namespace 'ads' may use 2 of objects, uses 2"):
                await anna.module(*LINEAR)
            with pytest.raises(tc.errors.QuotaError, match=r"'ads' may use 2 of sessions, uses 2"):
                await identities.connect(server, "anna", namespace="ads")
            async with identities.connect(server, "anna") as elsewhere:
                assert (await elsewhere.module(*LINEAR, name="net")).owner == "ps0"
            groups = {str(each) for each in server.engine.budget.of(anna.trainer).groups}
            assert len(nets) == 2 and any("the namespace 'ads'" in each for each in groups), groups
            sections = {each.section for each in (await anna.status()).quotas}
            assert "namespace.ads" in sections and not sections & {"identity.bert", "namespace.default"}
        async with identities.connect(server, "admin") as admin:
            assert "namespace.ads" in {each.section for each in (await admin.status()).quotas}


async def test_unary_methods_count_in_their_namespace(identities: Identities, tmp_path: Path) -> None:
    identities.tokens["anna"] = identities.file.add("anna", (), namespaces=(("ads", ("trainer",)),))
    (tmp_path / "quotas.toml").write_text("[namespace.ads]\nobjects = 0\n")
    async with (
        identities.serving(quotas=QuotaFile(tmp_path / "quotas.toml")) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        metadata = [
            ("authorization", f"Bearer {identities.tokens['anna']}"),
            ("ps-trainer", "5e" * 16),
            ("ps-namespace", "ads"),
        ]
        with pytest.raises(grpc.aio.AioRpcError, match="the namespace 'ads' may use 0 of objects"):
            await OwnerStub(channel).Create(CreateRequest(class_name="torch.nn.ReLU", name="net"), metadata=metadata)


async def test_without_tokens_unary_methods_stay_in_their_namespace_too(tmp_path: Path) -> None:
    (tmp_path / "quotas.toml").write_text("[namespace.ads]\nobjects = 1\n")
    engine = Engine("ps0", allowed(hosted_models), quotas=QuotaFile(tmp_path / "quotas.toml"))
    async with Server(engine, direct_port=0) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub, told = OwnerStub(channel), (("ps-trainer", "5e" * 16), ("ps-namespace", "ads"))
        made = await stub.Create(CreateRequest(class_name="torch.nn.ReLU", name="net"), metadata=told)
        await stub.State(StateRequest(target=made.object.handle), metadata=told)
        with pytest.raises(grpc.aio.AioRpcError, match="the namespace 'ads' may use 1 of objects"):
            await stub.Create(CreateRequest(class_name="torch.nn.ReLU", name="net2"), metadata=told)


async def test_a_session_goes_where_its_streams_have_room_too(identities: Identities, tmp_path: Path) -> None:
    (tmp_path / "quotas.toml").write_text(
        "[identity.anna]\nsessions = 1\nstreams = 1\n[namespace.full]\nsessions = 0\n[namespace.still]\nstreams = 0\n"
    )
    async with identities.serving(quotas=QuotaFile(tmp_path / "quotas.toml")) as server:
        connector = GrpcConnector(server.address, token=identities.tokens["anna"])
        trainer = new_trainer_id()
        refused = {"full": "the namespace 'full' may use 0 of sessions", "still": "'still' may use 0 of streams"}
        for namespace in ("", "full", "still", "ads"):
            stream = HandMade(await connector.connect())
            await stream.send(Frame(hello=stream.hello(trainer=trainer, namespace=namespace)))
            answer = await stream.receive()
            assert refused.get(namespace, "") in answer.refusal.error.message
            assert answer.HasField("refusal") is (namespace in refused), answer
