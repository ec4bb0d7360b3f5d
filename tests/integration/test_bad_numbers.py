"""Numbers that make no sense, over the wire and from programs: each is refused in words, and nothing changes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import torch

import trainer_client as tc
from ps_service.requests.operations import OPERATIONS
from ps_service.rpc.intake import Intake
from ps_service.server import Server
from ps_wire.connections.frames import Packet
from ps_wire.limits import MIB, Limits
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.errors_pb2 import ErrorCode
from ps_wire.v1.frames_pb2 import Frame, Part, Request
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from tests.integration.support import COUNTER, HandMade, engine, fingerprint, in_memory
from trainer_client.rpc.options import TensorPipeRpcBackendOptions
from trainer_client.session.settings import Settings

NO_TIMES = [math.nan, math.inf, -math.inf, -1.0, -1e-300, 1e300]
INVALID = ErrorCode.ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize("seconds", NO_TIMES)
async def test_a_timeout_that_is_no_time_is_refused_and_counts_nowhere(
    seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_memory() as owner, tc.connect(owner.connector()) as ps:
        counter = await ps.create(COUNTER, name="counter")
        before = fingerprint(owner.engine)
        stream = await HandMade.greeted(owner.connector())
        add = pb.CallRequest(target=counter.ref.to_message(), method="add")
        status = pb.StatusRequest()
        for number, body in enumerate(({"call": add}, {"status": status}), 1):
            await stream.send(Frame(number=number, request=Request(timeout_seconds=seconds, **body)))
            error = (await stream.receive()).reply.error
            assert error.code == INVALID and "timeout_seconds is a number of seconds" in error.message
        assert fingerprint(owner.engine) == before
        assert (owner.engine.counters.running, list(owner.engine.requests.running())) == (0, [])
        # It was not taken up, so it may be sent again.
        await stream.send(Frame(number=1, request=Request(timeout_seconds=20.0, call=add)))
        assert (await stream.receive()).reply.call.result.integer == 1
        await stream.send(Frame(number=2, request=Request(timeout_seconds=1e9, status=status)))
        assert (await stream.receive()).reply.HasField("status")
        assert (await ps.status()).requests_in_flight == 0
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("seconds", NO_TIMES)
async def test_a_message_whose_timeout_is_no_time_does_not_wait_for_space(seconds: float) -> None:
    owner = engine(limits=Limits(max_session_bytes=MIB))
    intake = Intake(owner, owner.sessions.open(b"a" * 16))
    intake.take(Packet(Frame(number=1, request=Request(), payload_bytes=MIB), (memoryview(b"x"),)))
    request = Request(timeout_seconds=seconds)
    refused = intake.take(Packet(Frame(number=2, request=request, payload_bytes=MIB), (memoryview(b"x"),)))
    message = await refused  # type: ignore[misc]
    assert message is not None and isinstance(message.error, tc.errors.InvalidArgumentError)
    assert owner.budget.requests == MIB and owner.budget.pauses == 0
    # The rest of it is passed over.
    assert intake.take(Packet(Frame(number=2, part=Part(offset=1)), (memoryview(bytes(MIB - 1)),))) is None
    intake.close()
    owner.close()


WAITING = sorted(
    name for name in OPERATIONS if "wait_seconds" in type(getattr(Request(), name)).DESCRIPTOR.fields_by_name
)


@pytest.mark.parametrize("operation", WAITING)
async def test_a_wait_that_is_no_time_is_refused_before_anything_changes(operation: str) -> None:
    async with in_memory() as owner, tc.connect(owner.connector()) as ps:
        net = await ps.module("torch.nn.Linear", 2, 1, name="net", seed=0)
        opt = await ps.optimizer(
            torch.optim.SGD, net.parameters(), lr=0.1, name="opt", policy=tc.policies.Sync(trainers=2)
        )
        target, optimizer = net.ref.to_message(), opt.remotes["ps0"].handle.ref.to_message()
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 2))).sum())
            context = ctx.id.to_message()
            requests: dict[str, Any] = {
                "backward": {"context": context, "call": 1, "steps": [optimizer]},
                "collective": {"member": 1, "number": 1, "kind": 1},
                "join_communicator": {"member": 1, "name": "all", "size": 2, "patience_seconds": 1.0},
                "lookup": {"name": "nobody"},
                "members": {"at_least": 3},
                "push": {"optimizer": optimizer, "target": target},
                "register": {"name": "a", "address": "127.0.0.1:1", "id": 0, "world_size": 2},
                "rendezvous": {"key": "k", "name": "ps0", "names": ["ps0"]},
                "step": {"optimizer": optimizer, "context": context},
            }
            message = type(getattr(Request(), operation))(**requests[operation])
            if operation == "push":
                message.gradients.list.SetInParent()
            before = fingerprint(owner.engine)
            for seconds in NO_TIMES:
                message.wait_seconds = seconds
                with pytest.raises(tc.errors.InvalidArgumentError, match="wait_seconds is a number of seconds"):
                    await net.session.submit(Request(**{operation: message}), None, lambda reply, _: reply)
            assert fingerprint(owner.engine) == before
            assert not owner.engine.directory.members() and not owner.engine.communicators.snapshot()
            assert not owner.engine.counters.running


@pytest.mark.parametrize("seconds", [each for each in NO_TIMES if each != -1.0])
def test_a_timeout_of_a_program_that_is_no_time_is_refused_at_once(seconds: float) -> None:
    for name in ("timeout", "connect_timeout", "reconnect_timeout"):
        with pytest.raises(tc.errors.InvalidArgumentError, match=f"{name} is a number of seconds"):
            tc.connect("127.0.0.1:1", **{name: seconds})
    with pytest.raises(ValueError, match="rpc_timeout is a number of seconds"):
        TensorPipeRpcBackendOptions(rpc_timeout=seconds)
    with pytest.raises(ValueError, match="timeout is a number of seconds"):
        Settings().seconds(seconds)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -2.0, 1e300, "1"])
async def test_a_timeout_of_a_call_that_is_no_time_is_refused_and_nothing_is_sent(ps: tc.Client, seconds: Any) -> None:
    counter = await ps.create(COUNTER)
    attempts: list[Callable[[], Any]] = [
        lambda: counter.options(timeout=seconds),
        lambda: ps.create(COUNTER, timeout=seconds),
        lambda: ps.call("torch.add", 1, 1, timeout=seconds),
        lambda: ps.communicator("all", 1, timeout=seconds),
    ]
    for attempt in attempts:
        with pytest.raises(tc.errors.InvalidArgumentError, match="timeout is a number of seconds"):
            attempt()
    pending = counter.add()
    with pytest.raises(tc.errors.InvalidArgumentError, match="timeout is a number of seconds"):
        pending.wait(seconds)
    assert await pending == 1


async def test_other_numbers_of_a_program_that_make_no_sense_are_refused(ps: tc.Client) -> None:
    attempts: list[tuple[type[Exception], Callable[[], Any]]] = [
        (tc.errors.InvalidArgumentError, lambda: ps.communicator("all", 1, lost_after=10**400)),
        (tc.errors.InvalidArgumentError, lambda: ps.communicator("all", 1, lost_after=math.nan)),
        (tc.errors.InvalidArgumentError, lambda: tc.tables.Eviction(ttl=1e300)),
        (tc.errors.InvalidArgumentError, lambda: tc.tables.Eviction(spare=1e300)),
        (tc.errors.InvalidArgumentError, lambda: tc.tables.Adagrad(lr=10**400)),
        (tc.errors.InvalidArgumentError, lambda: tc.policies.Compensate(10**400)),
        (tc.errors.InvalidArgumentError, lambda: ps.manual_seed(math.nan)),  # type: ignore[arg-type]
    ]
    for error, attempt in attempts:
        with pytest.raises(error):
            attempt()
    counter = await ps.create(COUNTER)
    assert await counter.add() == 1


async def test_a_number_of_a_unary_request_that_is_too_large_is_refused(owner: Server) -> None:
    async with grpc.aio.insecure_channel(owner.address) as channel:
        for number in (1 << 64, 10**30, 10**5000):
            # Python reads no numbers of so many digits.
            text = "1" + "0" * 5000 if number == 10**5000 else str(number)
            metadata = (("ps-trainer", bytes(16).hex()), ("ps-number", text))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await OwnerStub(channel).Create(pb.CreateRequest(class_name=COUNTER), metadata=metadata)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        metadata = (("ps-trainer", bytes(16).hex()), ("ps-number", str((1 << 64) - 1)))
        made = await OwnerStub(channel).Create(pb.CreateRequest(class_name=COUNTER), metadata=metadata)
        assert made.created
        again = await OwnerStub(channel).Create(pb.CreateRequest(class_name=COUNTER), metadata=metadata)
        assert again.object.handle == made.object.handle


LARGEST = (1 << 64) - 1
GRADIENT = pb.CountedGradient(key=pb.OfferKey(trainer=bytes(16), number=1, epoch=1), weight=1.0)


def closed(**changes: Any) -> pb.Decisions:
    fields = {"version": 1, "counted": [GRADIENT], "divisor": 1, **changes}
    return pb.Decisions(first=1, decisions=[pb.Decision(closed=pb.ClosedRound(**fields))])


async def test_decisions_with_numbers_that_none_has_are_refused(pair: tc.Client) -> None:
    opt = await over_both(pair)
    for decisions in (
        pb.Decisions(base=LARGEST),
        pb.Decisions(first=LARGEST),
        closed(version=LARGEST),
        closed(divisor=0),
        closed(counted=[pb.CountedGradient(key=GRADIENT.key, weight=math.nan)]),
        closed(counted=[pb.CountedGradient(key=GRADIENT.key, weight=math.inf)]),
        closed(counted=[pb.CountedGradient(key=GRADIENT.key, weight=-1.0)]),
    ):
        request = pb.SettleRequest(
            optimizer=opt.remotes["ps1"].handle.ref.to_message(), number=1, epoch=1, decisions=decisions
        )
        with pytest.raises(tc.errors.InvalidArgumentError):
            await pair.session("ps1").submit(Request(settle=request), None, lambda reply, _: reply)
    assert set((await step(pair, opt)).values()) == {1}


async def test_a_decision_that_cannot_have_been_carried_out_is_refused(pair: tc.Client) -> None:
    opt = await over_both(pair)
    offer = pb.Offer(applied={"ps1": LARGEST}, withdraw=True)
    request = pb.StepRequest(optimizer=opt.remotes["ps0"].handle.ref.to_message(), offer=offer)
    request.context.trainer, request.context.number = bytes(16), 1
    with pytest.raises(tc.errors.InvalidArgumentError, match="the number of a decision is a whole number"):
        await pair.session("ps0").submit(Request(step=request), None, lambda reply, _: reply)
    assert set((await step(pair, opt)).values()) == {1}


async def over_both(pair: tc.Client) -> tc.DistributedOptimizer:
    nets = [await pair.module("torch.nn.Linear", 2, 1, name="net", owner=owner) for owner in ("ps0", "ps1")]
    parameters = [each for net in nets for each in net.parameters()]
    return await pair.optimizer(torch.optim.SGD, parameters, lr=0.1, name="opt", policy=tc.policies.Sync(trainers=1))


async def step(pair: tc.Client, opt: tc.DistributedOptimizer) -> tc.Stepped:
    nets = [await pair.attach("net", owner=owner) for owner in ("ps0", "ps1")]
    async with pair.context() as ctx:
        await ctx.backward(sum([(await net(torch.ones(1, 2))).sum() for net in nets]))
        return await opt.step(ctx)
