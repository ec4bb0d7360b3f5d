"""Attacks by those who have a token, and not the role for what they ask."""

from __future__ import annotations

import grpc
import torch

import trainer_client as tc
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.directory_pb2 import ClaimReply, ClaimRequest, DirectoryEntry
from ps_wire.v1.frames_pb2 import Request
from tests.attack.attack import attack
from tests.attack.scene import Scene
from trainer_client.transport.channels import open_channel

VAULT = "tests.attack.hosted.Vault"


@attack(
    "calls methods that ask for the role admin, and methods and attributes that are not marked at all",
    "each is refused, and nothing of them runs",
    quick=True,
)
async def call_a_method_without_its_role(at: Scene) -> None:
    ps = await at.connect("mallory")
    vault = await ps.create(VAULT, name="vault")
    stream = await at.stream()
    target = vault.ref.to_message()
    for method in (
        "unlock",
        "secret",
        "__init__",
        "__class__",
        "__dict__",
        "opened",
        "unlock ",
        "UNLOCK",
        "look.unlock",
    ):
        await at.refused(vault.call(method), method, tc.PsError, AttributeError)
        error = await at.ask(stream, Request(call=pb.CallRequest(target=target, method=method)))
        at.hold(error.code, f"{method} is answered")
    for function in ("builtins.eval", "os.system", f"{VAULT}.unlock", "tests.attack.hosted.Vault.secret", "torch.load"):
        error = await at.ask(stream, Request(call=pb.CallRequest(function=function)))
        at.hold(error.code, f"{function} is answered")
    at.hold(await vault.look() == 0, "a method has run")


@attack(
    "reads states, parameters, replicas, optimizers and rows of tables as a trainer without the role bulk",
    "each is refused",
)
async def read_in_bulk(at: Scene) -> None:
    at.identities.add("maker", "trainer", "bulk", "admin")
    at.server.engine.access.look()
    maker = await at.connect("maker")
    made = await maker.module("torch.nn.Linear", 4, 2, name="net")
    table = await maker.table("users", dim=2, optimizer=tc.tables.SGD(lr=0.1))
    await table(torch.tensor([1, 2]))
    await maker.optimizer(torch.optim.SGD, made.parameters(), lr=0.1)
    ps = await at.connect("mallory")
    net, users = await ps.attach("net"), await ps.table("users", dim=2, optimizer=tc.tables.SGD(lr=0.1))
    stream = await at.stream()
    sgd = next(each.ref for each in at.server.engine.registry.objects() if each.class_name.endswith("SGD"))
    for target in (made.ref.to_message(), sgd.to_message()):
        for request in (
            Request(state=pb.StateRequest(target=target)),
            Request(pull=pb.PullRequest()),
            Request(
                push=pb.PushRequest(target=made.ref.to_message(), optimizer=sgd.to_message(), pull=pb.PullRequest())
            ),
            Request(load_state=pb.LoadStateRequest(target=target)),
        ):
            at.denied(await at.ask(stream, request), request)
    await at.refused(net.state_dict(), "state_dict")
    await at.refused(users.export(at.folder / "rows"), "an export")
    for parameter in net.parameters():
        await at.refused(parameter.to_here(), "a parameter")


@attack(
    "claims names of a directory as a keeper's member, and meets in the name of owners",
    "only the role owner may",
    quick=True,
)
async def claim_a_name_of_a_directory(at: Scene) -> None:
    requests = (
        ("/ps_wire.v1.Directory/Claim", ClaimRequest(), ClaimReply),
        ("/ps_wire.v1.Directory/Claim", ClaimRequest(entry=DirectoryEntry(), keepers=["ps0"], leaves=True), ClaimReply),
        ("/ps_wire.v1.Owner/Rendezvous", pb.RendezvousRequest(key="k", name="ps0", names=["ps0"]), None),
        ("/ps_wire.v1.Owner/Move", pb.MoveRequest(), None),
        ("/ps_wire.v1.Owner/Checkpoint", pb.CheckpointRequest(), None),
        ("/ps_wire.v1.Owner/Sessions", pb.SessionsRequest(), None),
        ("/ps_wire.v1.Directory/claim", ClaimRequest(), None),
        ("/ps_wire.v1.Directory//Claim", ClaimRequest(), None),
        ("//ps_wire.v1.Directory/Claim", ClaimRequest(), None),
        ("/ps_wire.v1.directory/Claim", ClaimRequest(), None),
    )
    async with open_channel(at.address) as channel:
        for method, request, _ in requests:
            for role in ("mallory", "reader", "bulk", ""):
                at.tried += 1
                token = at.identities.tokens.get(role, "")
                metadata = [("authorization", f"Bearer {token}")] if token else []
                try:
                    await channel.unary_unary(method)(request.SerializeToString(), metadata=metadata, timeout=10.0)
                    code = grpc.StatusCode.OK
                except grpc.aio.AioRpcError as error:
                    code = error.code()
                refusals = (
                    grpc.StatusCode.PERMISSION_DENIED,
                    grpc.StatusCode.UNAUTHENTICATED,
                    grpc.StatusCode.UNIMPLEMENTED,
                )
                # Whoever follows an object that moves may call that method; an empty call names none.
                is_plain = method.endswith("/Move") and role and code is grpc.StatusCode.INVALID_ARGUMENT
                at.hold(code in refusals or is_plain, f"{role or 'a stranger'} calls {method}: {code}")
