"""Attacks on sessions, and on what belongs to them."""

from __future__ import annotations

import grpc
import torch

from ps_service.engine import Engine
from ps_service.server import Server
from ps_wire.codec.values import Encoder
from ps_wire.refs import ContextId
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Frame, Request
from tests import hosted_models
from tests.allowed import allowed
from tests.attack.attack import attack
from tests.attack.scene import Scene
from tests.integration.support import COUNTER, HandMade
from trainer_client.transport.grpc_stream import GrpcConnector


@attack(
    "says hello with the id of another identity's trainer",
    "the session stays where it is",
    quick=True,
)
async def take_a_session_over(at: Scene) -> None:
    victim = at.innocent.ps.trainer
    for name in ("mallory", "reader", "admin", "owner"):
        at.tried += 1
        at.denied((await at.hello(name, trainer=victim)).refusal.error, name)
    at.hold(len(at.server.engine.sessions.all()) == 1, "there is another session")


@attack(
    "ends another's session, passes and references with unary calls under the id of its trainer, and by evict",
    "each is refused, and the pass goes on",
    quick=True,
)
async def end_a_session_of_another(at: Scene) -> None:
    ps = at.innocent.ps
    async with ps.context() as ctx:
        loss = (await at.innocent.net(torch.ones(4))).sum()
        metadata = (("ps-trainer", ps.trainer.hex()), ("ps-number", "1000000"))
        object_id = str(at.innocent.net.ref.object_id)
        requests = {
            "Release": pb.ReleaseRequest(object_ids=[object_id]),
            "EndContext": pb.EndContextRequest(context=ctx.message),
            "Fetch": pb.FetchRequest(target=at.innocent.net.ref.to_message()),
            "Evict": pb.EvictRequest(session=ps.trainer_name),
        }
        for method, request in requests.items():
            code, _ = await at.unary(method, request, *metadata)
            at.hold(code is grpc.StatusCode.PERMISSION_DENIED, f"{method}: {code}")
        for request in (
            pb.EvictRequest(session=ps.trainer_name),
            pb.EvictRequest(context=str(ContextId(ps.trainer, 1))),
            pb.EvictRequest(unused_seconds=0.0),
        ):
            code, _ = await at.unary("Evict", request)
            at.hold(code is grpc.StatusCode.PERMISSION_DENIED, f"Evict {request}: {code}")
        await ctx.backward(loss)
    at.hold(len(at.server.engine.sessions.all()) == 1, "the session has ended")


@attack(
    "uses another identity's pass in every request that names one",
    "each is refused, and the pass goes on",
    quick=True,
)
async def use_a_pass_of_another(at: Scene) -> None:
    stream = await at.stream()
    async with at.innocent.ps.context() as ctx:
        await at.innocent.net(torch.ones(4))
        context = ctx.message
        for request in (
            Request(backward=pb.BackwardRequest(context=context)),
            Request(gradients=pb.GradientsRequest(context=context)),
            Request(norm=pb.NormRequest(context=context)),
            Request(scale=pb.ScaleRequest(context=context, factor=2.0)),
            Request(step=pb.StepRequest(context=context)),
            Request(end_context=pb.EndContextRequest(context=context)),
            Request(call=pb.CallRequest(function="torch.neg", context=context)),
            Request(fetch=pb.FetchRequest(target=at.innocent.net.ref.to_message(), context=context)),
        ):
            at.denied(await at.ask(stream, request), request)


@attack(
    "uses another identity's object without a name, and a result that stays, by their ids",
    "each is refused, whatever the operation is",
    quick=True,
)
async def use_an_object_of_another(at: Scene) -> None:
    at.identities.add("bulk-reader", "trainer", "bulk")
    at.server.engine.access.look()
    ps = at.innocent.ps
    counter = await ps.create(COUNTER)
    result = await counter.hand_out([1, 2])
    stream = await at.stream("bulk-reader")
    for target in (counter.ref.to_message(), result.ref.to_message(), at.innocent.net.ref.to_message()):
        argument = Encoder(None, lambda _, sent=target: sent).encode((object(),))
        for request in (
            Request(call=pb.CallRequest(target=target)),
            Request(call=pb.CallRequest(target=target, method="add")),
            Request(call=pb.CallRequest(function="torch.neg", args=argument)),
            Request(fetch=pb.FetchRequest(target=target)),
            Request(state=pb.StateRequest(target=target)),
            Request(attach=pb.AttachRequest(handle=target)),
            Request(create=pb.CreateRequest(class_name=COUNTER, args=argument)),
        ):
            at.denied(await at.ask(stream, request), request)
    at.hold(await counter.add() == 1, "the object was changed")


@attack(
    "asks for the answers that are kept for another's session, by their numbers",
    "none is given out",
    quick=True,
)
async def read_an_answer_of_another(at: Scene) -> None:
    ps = at.innocent.ps
    counter = await ps.create(COUNTER)
    await counter.add()
    for number in range(20):
        metadata = (("ps-trainer", ps.trainer.hex()), ("ps-number", str(number)))
        for method, request in (
            ("Call", pb.CallRequest(target=counter.ref.to_message(), method="add")),
            ("Create", pb.CreateRequest(class_name=COUNTER)),
        ):
            code, _ = await at.unary(method, request, *metadata)
            at.hold(code is grpc.StatusCode.PERMISSION_DENIED, f"{method} {number}: {code}")
    at.hold(await counter.add() == 2, "a call has run")


@attack(
    "says hello with the id of another identity's trainer after the owner was killed and has started again",
    "its log has whose the session is; the trainer itself is let in",
)
async def take_a_session_over_after_a_restart(at: Scene) -> None:
    def owner() -> Server:
        engine = Engine("ps1", allowed(hosted_models), tokens=at.identities.file, data_dir=at.folder / "data")
        return Server(engine, durability="always", direct_port="off")

    first = owner()
    await first.start()
    trainer = b"v" * 16
    tokens = at.identities.tokens
    stream = HandMade(await GrpcConnector(first.address, token=tokens["trainer"]).connect())
    await stream.send(Frame(hello=stream.hello(trainer=trainer)))
    incarnation = (await stream.receive()).welcome.incarnation
    at.hold(not (await at.ask(stream, Request(create=pb.CreateRequest(class_name=COUNTER)))).code, "nothing is made")
    await first.stop()
    await stream.connection.close()
    async with owner() as second:
        for name, expected in (
            ("mallory", "refusal"),
            ("bulk", "refusal"),
            ("owner", "refusal"),
            ("trainer", "welcome"),
        ):
            at.tried += 1
            stream = HandMade(await GrpcConnector(second.address, token=tokens[name]).connect())
            await stream.send(Frame(hello=stream.hello(trainer=trainer, incarnation=incarnation)))
            answer = await stream.receive()
            await stream.connection.close()
            at.hold(answer.WhichOneof("body") == expected, f"{name}: {answer}")
        at.hold(answer.welcome.resumed, "the session does not continue")
