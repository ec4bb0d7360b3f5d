"""Attacks on names: of members, of objects in namespaces, of tables and communicators."""

from __future__ import annotations

import asyncio

import aiohttp
import grpc
import torch

import trainer_client as tc
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.values_pb2 import DType, TableName
from tests.attack.attack import attack
from tests.attack.scene import Scene
from tests.integration.support import COUNTER
from tests.table_models import rows_of


class Forged:
    """Is sent as a table of some name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __ps_table__(self) -> TableName:
        return TableName(name=self.name, dim=2, dtype=DType.DTYPE_FLOAT32)


ODD_NAMES = (
    *("ads::net", "::ads::net", "ads::", "::net", "default::ads::net", "search::ads::net", "ads::ads::net"),
    *("../ads/net", "../ads::net", "ads/net", "./ads::net", "ads%3A%3Anet", "ads:\u200b:net", "\uff1aads::net"),
    *("ads\uff1a\uff1anet", "\u0430ds::net", "ads::n\u0435t", "ADS::net", " ads::net", "ads::net ", "ads::net\x00"),
    *("\x00ads::net", "ads\x00::net", "ads::\x00net", "\u202etne::sda", "ads\u2237net", "ads" * 5000 + "::net"),
)
"""Names with which somebody might reach the object `net` of the namespace `ads`."""


@attack(
    "registers a member under a free name, under another's, and with another's incarnation",
    "only the role owner registers members",
    quick=True,
)
async def register_as_a_member(at: Scene) -> None:
    before = [str(each) for each in (await at.innocent.ps.status()).members]
    for name in ("free", "ps0", "", "ads::ps0", "x" * 70000):
        for more in ({}, {"id": 0}, {"incarnation": "f" * 32, "earlier": [at.server.engine.incarnations.current]}):
            request = pb.RegisterRequest(name=name, address="127.0.0.1:1", is_owner=True, **more)
            for identity in ("mallory", "reader", "admin"):
                code, _ = await at.unary("Register", request, name=identity)
                at.hold(code is grpc.StatusCode.PERMISSION_DENIED, f"{identity} registers {name[:20]!r}: {code}")
    at.hold([str(each) for each in (await at.innocent.ps.status()).members] == before, "there is a new member")


async def _teams(at: Scene) -> tuple[tc.Client, tc.Client]:
    at.identities.add("anna", namespaces=(("ads", ("trainer", "bulk")),))
    at.identities.add("sam", namespaces=(("search", ("trainer", "bulk", "admin")),))
    at.server.engine.access.look()
    return await at.connect("anna", namespace="ads"), await at.connect("sam", namespace="search")


@attack(
    "looks up, creates and deletes objects of another namespace, with '::', paths, NUL, very long names, look-alikes",
    "the object is never found, replaced or deleted, and its namespace gets nothing new",
    quick=True,
)
async def reach_a_name_of_another_namespace(at: Scene) -> None:
    anna, sam = await _teams(at)
    counter = await anna.create(COUNTER, name="net")
    registry = at.server.engine.registry
    errors = (tc.PsError, ValueError)
    for name in ODD_NAMES:
        await at.refused(sam.attach(name), f"attach {name[:40]!r}", *errors)
        await at.refused(sam.delete(name), f"delete {name[:40]!r}", *errors)
        at.tried += 1
        try:
            made = await sam.create(COUNTER, name=name)
        except errors:
            continue
        at.hold(made.ref != counter.ref, f"create {name[:40]!r} gave the object of another namespace")
    of_ads = [each for each in registry.objects() if each.name.startswith("ads::")]
    at.hold([each.name for each in of_ads] == ["ads::net"], f"the namespace has {[each.name for each in of_ads]}")
    at.hold(await counter.add() == 1, "the object was changed")
    await at.refused(sam.attach(str(counter.ref)), "attach by the id", *errors)


@attack(
    "connects to namespaces in which it has no role, and to names that are none",
    "each is refused at the connection",
    quick=True,
)
async def enter_another_namespace(at: Scene) -> None:
    at.identities.add("sam", namespaces=(("search", ("trainer",)),))
    at.server.engine.access.look()
    for namespace in ("", "default", "ads", "Search", "search ", "search::", "::", "..", "../ads", "s\x00", "a" * 9999):
        at.tried += 1
        answer = await at.hello("sam", namespace=namespace)
        at.hold(answer.HasField("refusal"), f"the namespace {namespace[:20]!r} is entered")
        if namespace.isprintable():
            code, _ = await at.unary("Status", pb.StatusRequest(), ("ps-namespace", namespace), name="sam")
            at.hold(code is not grpc.StatusCode.OK, f"a unary method is answered in {namespace[:20]!r}: {code}")


@attack(
    "uses a table of another namespace under its name, in all forms",
    "it has another one of the same name",
)
async def use_a_table_of_another_namespace(at: Scene) -> None:
    anna, sam = await _teams(at)
    table = await anna.table("users", dim=2, optimizer=tc.tables.SGD(lr=0.1))
    for name in ("ads::users", "../users", "ads::users.optimizer", "::users"):
        await at.refused(sam.attach(name), f"attach {name!r}", tc.PsError, ValueError)
        await at.refused(sam.delete(name), f"delete {name!r}", tc.PsError, ValueError)
        looked_up = sam.call(rows_of, Forged(name), torch.tensor([7]))
        await at.refused(looked_up, f"look up in {name!r} in hosted code", tc.PsError, ValueError)
    at.tried += 1
    await sam.table("users", dim=3, optimizer=tc.tables.SGD(lr=0.1))
    tables = sorted((each.name, each.dim) for each in (await anna.status()).tables)
    at.hold(tables == [("ads::users", 2)], f"it sees {tables}")
    at.hold(table.name == "users", "it has another name")


@attack(
    "looks for names of another namespace in all that a trainer of it may read: status, history, lists, errors",
    "no name is in it",
)
async def see_names_of_another_namespace(at: Scene) -> None:
    anna, _ = await _teams(at)
    net = await anna.module("torch.nn.Linear", 2, 2, name="hidden-net")
    await anna.optimizer(torch.optim.SGD, net.parameters(), lr=0.1, name="hidden-optimizer")
    table = await anna.table("hidden-table", dim=2, optimizer=tc.tables.SGD(lr=0.1))
    await table(torch.tensor([1]))
    await at.refused(net(torch.ones(5, 7)), "a call that fails", RuntimeError, tc.PsError)
    metadata = (("ps-namespace", "search"),)
    for method, request in (
        ("Status", pb.StatusRequest()),
        ("History", pb.HistoryRequest()),
        ("Members", pb.MembersRequest()),
        ("Attach", pb.AttachRequest(name="hidden-net")),
        ("Attach", pb.AttachRequest(name="hidden")),
        ("Delete", pb.DeleteRequest(name="none")),
    ):
        for who, where in (("sam", metadata), ("reader", ())):
            _, reply = await at.unary(method, request, *where, name=who)
            at.hold(reply is None or b"hidden" not in reply.SerializeToString(), f"{method} shows {who} a name")
    _, reply = await at.unary("Status", pb.StatusRequest(), ("ps-namespace", "ads"), name="anna")
    at.hold(b"hidden-net" in reply.SerializeToString(), "its own trainer does not see it")
    async with aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {at.identities.tokens['sam']}"}
        for path in ("/status.json", "/metrics", "/"):
            at.tried += 1
            async with http.get(at.server.http_url + path, headers=headers) as answer:
                at.hold("hidden" not in await answer.text(), f"{path} shows a name")


@attack(
    "joins a communicator of another namespace, and sends, ends and joins under the numbers of its members",
    "its members exchange their own values",
)
async def join_a_communicator_of_another_namespace(at: Scene) -> None:
    anna, sam = await _teams(at)
    other = await at.connect("anna", namespace="ads")
    first = anna.communicator("ring", 2, 0)
    for name in ("ring", "ads::ring", "::ring", "default::ring", "../ring"):
        await at.refused(sam.communicator(name, 2, 1, timeout=0.2), name, tc.PsError, ValueError, TimeoutError)
    joined = await asyncio.gather(first, other.communicator("ring", 2, 1))
    stream = await at.stream("sam", "search")
    for number in range(1, 5):
        await at.ask(stream, Request(leave_communicator=pb.LeaveCommunicatorRequest(member=number)))
        error = await at.ask(stream, Request(collective=pb.CollectiveRequest(member=number)))
        at.hold(error.code, f"the membership {number} is used")
    found = await asyncio.gather(*(each.all_reduce(torch.ones(2)) for each in joined))
    at.hold(all(torch.equal(each, torch.full((2,), 2.0)) for each in found), f"they have {found}")
