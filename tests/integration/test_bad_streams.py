"""Streams that no client of ours would send: the owner ends them or answers, and other trainers do not notice."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import grpc
import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from ps_wire.codec.values import Encoder
from ps_wire.connections.connection import Connection
from ps_wire.connections.frames import Packet
from ps_wire.limits import MIB, PROTOCOL, SMALL_BYTES, Limits
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.errors_pb2 import Error, ErrorCode
from ps_wire.v1.frames_pb2 import Confirm, Frame, Hello, Part, Refusal, Reply, Request, Welcome
from ps_wire.v1.values_pb2 import DType, Handle, Sequence, SparseTensor, Tensor, Value
from tests.integration.support import COUNTER, GATE, HandMade, fingerprint, serving
from trainer_client.transport.grpc_stream import GrpcConnector
from trainer_client.transport.in_process import MemoryConnector


@asynccontextmanager
async def trained_meanwhile() -> AsyncIterator[Server]:
    """An owner whose other trainer goes on training while the block runs, and ends where local torch ends."""
    async with serving(Limits(max_message_bytes=MIB)) as owner, tc.connect(owner.address) as ps:
        net = await ps.module("torch.nn.Linear", 3, 2, name="net", seed=0)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.01, momentum=0.9)
        over = asyncio.Event()

        async def train() -> int:
            steps = 0
            while not over.is_set() or steps < 3:
                async with ps.context() as ctx:
                    await ctx.backward((await net(torch.full((2, 3), steps % 5.0))).square().sum())
                    steps = (await opt.step(ctx))["ps0"]
            return steps

        training = asyncio.create_task(train())
        try:
            yield owner
        finally:
            over.set()
            steps = await training
        torch.manual_seed(0)
        local = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(local.parameters(), lr=0.01, momentum=0.9)
        for step in range(steps):
            optimizer.zero_grad()
            local(torch.full((2, 3), step % 5.0)).square().sum().backward()
            optimizer.step()
        state = await net.state_dict()
        assert all(torch.equal(state[name], value) for name, value in local.state_dict().items())
        assert repr(ps).count("connected") == 1


async def refusal_of(owner: Server, *frames: Frame) -> Error:
    stream = HandMade(await GrpcConnector(owner.address).connect())
    for frame in frames:
        await stream.send(frame)
    answer = await stream.receive()
    assert await stream.ended()
    await stream.connection.close()
    return answer.refusal.error


async def test_a_stream_that_does_not_begin_rightly_is_told_why() -> None:
    good = {"protocol": PROTOCOL, "trainer": bytes(16)}
    rows = [
        (Frame(number=1, request=Request(status=pb.StatusRequest())), "a stream begins with Hello"),
        (Frame(), "a stream begins with Hello"),
        (Frame(number=3, part=Part()), "a stream begins with Hello"),
        (Frame(hello=Hello(**{**good, "protocol": PROTOCOL + 1})), "install the same release on both sides"),
        (Frame(hello=Hello(trainer=bytes(16))), f"version {PROTOCOL} of the protocol, the trainer version 0"),
        (Frame(hello=Hello(**{**good, "trainer": b"short"})), "a trainer's id has 16 bytes"),
        (Frame(hello=Hello(protocol=PROTOCOL)), "a trainer's id has 16 bytes"),
    ]
    async with trained_meanwhile() as owner:
        for frame, words in rows:
            error = await refusal_of(owner, frame)
            assert error.code == ErrorCode.ERROR_INVALID_ARGUMENT and words in error.message
        assert len(owner.engine.sessions) == 1


async def test_a_client_that_meets_something_else_than_an_owner_says_so() -> None:
    async def strange(connection: Connection) -> None:
        await connection.receive()
        await connection.send(Packet(Frame(reply=Reply())))

    with pytest.raises(tc.errors.InvalidArgumentError, match="this process does not speak the owner's protocol"):
        await tc.connect(MemoryConnector(strange))


HELLO = Hello(protocol=PROTOCOL, trainer=b"\x01" * 16)
STATUS = Frame(number=1, request=Request(status=pb.StatusRequest()))

OUT_OF_PLACE: list[tuple[str, list[tuple[Frame, bytes]]]] = [
    ("a part of nothing", [(Frame(number=9, part=Part()), b"x")]),
    ("a second hello", [(Frame(hello=HELLO), b"")]),
    ("a reply", [(Frame(number=1, reply=Reply()), b"")]),
    ("a welcome", [(Frame(welcome=Welcome()), b"")]),
    ("a refusal", [(Frame(refusal=Refusal()), b"")]),
    ("an empty frame", [(Frame(number=1), b"")]),
    ("more than announced", [(Frame(number=1, request=STATUS.request, payload_bytes=1), b"xy")]),
    ("payload unannounced", [(STATUS, b"xy")]),
    (
        "more in parts than announced",
        [
            (Frame(number=1, request=STATUS.request, payload_bytes=3), b"xy"),
            (Frame(number=1, part=Part(offset=2)), b"xy"),
        ],
    ),
    (
        "a part out of order",
        [
            (Frame(number=1, request=STATUS.request, payload_bytes=3), b"xy"),
            (Frame(number=1, part=Part(offset=1)), b"z"),
        ],
    ),
    (
        "the same twice at once",
        [(Frame(number=1, request=STATUS.request, payload_bytes=3), b"xy")] * 2,
    ),
]


async def test_frames_out_of_place_end_their_stream_only() -> None:
    async with trained_meanwhile() as owner:
        for name, frames in OUT_OF_PLACE:
            stream = await HandMade.greeted(GrpcConnector(owner.address))
            for frame, payload in frames:
                copy = Frame()
                copy.CopyFrom(frame)
                await stream.send(copy, payload)
            assert await stream.ended(), name
            # The session outlives its stream, and goes on with the next one.
            await stream.connection.close()
            stream.connection = await GrpcConnector(owner.address).connect()
            await stream.send(Frame(hello=stream.hello(incarnation=owner.engine.incarnations.current)))
            assert (await stream.receive()).welcome.resumed, name
            await stream.send(STATUS)
            assert (await stream.receive()).reply.status.owner == "ps0"
            await stream.connection.close()


async def test_bytes_that_are_no_frame_end_their_stream_only() -> None:
    request = echo_of(Handle(owner="ps0", object_id="0" * 32), torch.ones(2)).SerializeToString()
    chance = random.Random(0)
    async with trained_meanwhile() as owner:
        corpus = [b"\xff", b"\x00" * 20, b"\x0a" + b"\xff" * 9, b"\x7a\xff\xff\xff\xff\x0f", b"GET / HTTP/1.1\r\n\r\n"]
        corpus += [chance.randbytes(chance.randrange(1, 60)) for _ in range(20)]
        corpus += [request[: chance.randrange(1, len(request))] for _ in range(20)]
        for _ in range(25):
            spoiled = bytearray(request)
            for _ in range(chance.randrange(1, 4)):
                spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
            corpus.append(bytes(spoiled))
        async with grpc.aio.insecure_channel(owner.address) as channel:
            for number, data in enumerate(corpus):
                await _send_bytes(channel, data, greet=bool(number % 2))
        assert len(owner.engine.registry) == 2


async def _send_bytes(channel: grpc.aio.Channel, data: bytes, greet: bool) -> None:
    call = channel.stream_stream("/ps_wire.v1.Owner/Session")()
    try:
        if greet:
            await call.write(Frame(hello=HELLO).SerializeToString())
            assert Frame.FromString(await call.read()).HasField("welcome")
        await call.write(data)
        # A question behind it: it is answered, or the stream is at its end.
        await call.write(Frame(number=1 << 20, request=STATUS.request).SerializeToString())
        while (answer := await call.read()) is not grpc.aio.EOF:
            if Frame.FromString(answer).number == 1 << 20:
                break
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        assert call.done()
    call.cancel()


def echo_of(target: Handle, *args: Any) -> Frame:
    call = pb.CallRequest(target=target, method="echo")
    Encoder(None).encode_into(call.args, args)
    return Frame(number=1, request=Request(call=call))


def nest(depth: int) -> Value:
    value = Value(list=Sequence())
    for _ in range(depth):
        value = Value(list=Sequence(items=[value]))
    return value


def tensor(**fields: Any) -> Value:
    return Value(tensor=Tensor(**{"dtype": DType.DTYPE_FLOAT32, "shape": [2], "nbytes": 8, **fields}))


def sparse(index: int, **fields: Any) -> Value:
    indices = tensor(dtype=DType.DTYPE_INT64, shape=[1, 1], data=index.to_bytes(8, "little")).tensor
    values = tensor(shape=[1], data=bytes(4)).tensor
    return Value(sparse=SparseTensor(**{"indices": indices, "values": values, "shape": [3], **fields}))


BAD_VALUES: list[tuple[str, Value, str]] = [
    ("nothing", Value(), "of a kind that is not known here"),
    ("bytes that are not there", tensor(), "a tensor claims bytes 0..8 of a payload of 0"),
    ("bytes far away", tensor(offset=1 << 63), "a tensor claims bytes"),
    ("too many bytes", tensor(data=bytes(12)), "has 8 bytes, but 12 were announced"),
    ("a huge tensor", tensor(shape=[1 << 40, 1 << 40]), "but 8 were announced"),
    ("a negative shape", tensor(shape=[-2], data=bytes(8)), r"claims the shape \[-2\]"),
    ("no dtype", tensor(dtype=0, data=bytes(8)), "dtype number 0 is unknown"),
    ("a dtype of tomorrow", tensor(dtype=999, data=bytes(8)), "dtype number 999 is unknown"),
    ("a dtype value of tomorrow", Value(dtype=999), "dtype number 999 is unknown"),
    ("an index out of range", sparse(3), "not a valid sparse tensor"),
    ("a negative index", sparse((1 << 64) - 1), "not a valid sparse tensor"),
    ("float indices", sparse(0, indices=tensor(shape=[1, 1], data=bytes(4)).tensor), "must be int64 of two dimensions"),
    ("no device", Value(device="toaster"), "'toaster' is not a device"),
    ("a deep list", nest(30), "nested more than 24 deep"),
    ("a stale handle", Value(handle=Handle(owner="ps0", object_id="f" * 32)), "Ask for it again"),
    ("a foreign handle", Value(handle=Handle(owner="ps9", object_id="f" * 32)), "belongs to owner 'ps9'"),
]


async def test_values_that_make_no_sense_are_typed_errors() -> None:
    async with serving() as owner, tc.connect(owner.address) as ps:
        counter = await ps.create(COUNTER, name="counter")
        before = fingerprint(owner.engine)
        stream = await HandMade.greeted(GrpcConnector(owner.address))
        numbers = count(1)
        for name, value, words in BAD_VALUES:
            for argument in (value, Value(list=Sequence(items=[value]))):
                frame = echo_of(counter.ref.to_message())
                frame.number = next(numbers)
                frame.request.call.args.tuple.items.append(argument)
                await stream.send(frame)
                error = (await stream.receive()).reply.error
                assert error.code not in (0, ErrorCode.ERROR_INTERNAL, ErrorCode.ERROR_REMOTE), (name, error)
                assert re.search(words, error.message), (name, error)
            assert fingerprint(owner.engine) == before, name
        assert await counter.add() == 1


async def test_requests_that_make_no_sense_are_typed_errors() -> None:
    async with serving() as owner, tc.connect(owner.address) as ps:
        net = await ps.module("torch.nn.Linear", 2, 2, name="net")
        target = net.ref.to_message()
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        stepped = opt.remotes["ps0"].handle.ref.to_message()
        rows: list[tuple[Request, str]] = [
            (Request(), "a request without an operation"),
            (Request(call=pb.CallRequest(target=target, context=pb.ContextId(trainer=b"x", number=1))), "16 bytes"),
            (Request(end_context=pb.EndContextRequest()), "a number from 1 on"),
            (Request(attach=pb.AttachRequest()), "belongs to owner ''"),
            (Request(create=pb.CreateRequest()), "class '' is not on this owner's allow-list"),
            (Request(delete=pb.DeleteRequest()), "hosts nothing under the name ''"),
            (Request(load_state=pb.LoadStateRequest(target=target)), "of a kind that is not known"),
            (Request(optimizer=pb.OptimizerRequest(class_name="torch.optim.SGD")), "at least one parameter"),
            (Request(optimizer=optimizer(target)), "has no parameter ''"),
            (Request(optimizer=optimizer(weight := target_of(target, "weight"), options=Value(integer=3))), "a dict"),
            (Request(optimizer=optimizer(weight, reads=7)), "not one that this owner knows"),
            (Request(optimizer=optimizer(weight, non_finite=7)), "not one that this owner knows"),
            (Request(step=pb.StepRequest(optimizer=target)), "is not an optimizer"),
            (Request(step=pb.StepRequest(optimizer=stepped)), "16 bytes"),
        ]
        before = fingerprint(owner.engine)
        stream = await HandMade.greeted(GrpcConnector(owner.address))
        for number, (request, words) in enumerate(rows, start=1):
            await stream.send(Frame(number=number, request=request))
            error = (await stream.receive()).reply.error
            assert error.code not in (0, ErrorCode.ERROR_INTERNAL, ErrorCode.ERROR_REMOTE), error
            assert words in error.message, error
        assert fingerprint(owner.engine) == before


def optimizer(parameter: Handle, **fields: Any) -> pb.OptimizerRequest:
    group = pb.ParameterGroup(parameters=[parameter])
    return pb.OptimizerRequest(class_name="torch.optim.SGD", groups=[group], name="opt", **fields)


def target_of(module: Handle, parameter: str) -> Handle:
    return Handle(owner=module.owner, object_id=module.object_id, parameter=parameter)


async def test_a_payload_over_the_limit_is_refused_before_it_has_arrived_and_the_stream_goes_on() -> None:
    async with serving(Limits(max_message_bytes=MIB)) as owner, tc.connect(owner.address) as ps:
        counter = await ps.create(COUNTER, name="counter")
        stream = await HandMade.greeted(GrpcConnector(owner.address))
        frame = echo_of(counter.ref.to_message())
        frame.payload_bytes = 1 << 62
        await stream.send(frame, bytes(100))
        answer = await stream.receive()
        assert (answer.number, answer.reply.error.code) == (1, ErrorCode.ERROR_TOO_LARGE)
        assert "4,611,686,018,427,387,904 bytes; the limit is 1,048,576. Send it in smaller pieces" in str(answer)
        # Parts that were on their way meanwhile are passed over.
        await stream.send(Frame(number=1, part=Part()), bytes(MIB))
        await stream.send(Frame(number=5, request=STATUS.request))
        assert (await stream.receive()).reply.status.owner == "ps0"


async def test_small_messages_that_never_end_are_refused_beyond_those_in_flight_and_the_stream_goes_on() -> None:
    async with serving(Limits(max_in_flight=2)) as owner, tc.connect(owner.address) as ps:
        counter = await ps.create(COUNTER, name="counter")
        stream = await HandMade.greeted(GrpcConnector(owner.address))
        for number in (1, 2, 3):
            frame = echo_of(counter.ref.to_message())
            frame.number, frame.payload_bytes = number, SMALL_BYTES
            await stream.send(frame, bytes(1))
        answer = await stream.receive()
        assert (answer.number, answer.reply.error.code) == (3, ErrorCode.ERROR_OVERLOADED)
        assert "2 small messages of this session have begun and are not whole" in answer.reply.error.message
        # Those that arrive whole, and large ones, go past them.
        frame = echo_of(counter.ref.to_message(), torch.ones(2))
        frame.number = 4
        await stream.send(frame)
        assert (await stream.receive()).number == 4
        for number in (5, 6, 7):
            frame = echo_of(counter.ref.to_message())
            frame.number, frame.payload_bytes = number, SMALL_BYTES + 1
            await stream.send(frame, bytes(1))
        for number in (5, 1):
            left = SMALL_BYTES if number == 5 else SMALL_BYTES - 1
            await stream.send(Frame(number=number, part=Part(offset=1)), bytes(left))
            assert (await stream.receive()).number == number
        # One of them is whole, so another may begin.
        frame = echo_of(counter.ref.to_message())
        frame.number, frame.payload_bytes = 8, 2
        await stream.send(frame, bytes(1))
        await stream.send(Frame(number=8, part=Part(offset=1)), bytes(1))
        assert (await stream.receive()).number == 8


async def test_more_requests_than_may_be_in_flight_are_refused_one_by_one() -> None:
    async with serving(Limits(max_in_flight=2), threads=6) as owner, tc.connect(owner.address) as ps:
        gate = await ps.create(GATE)
        stream = await HandMade.greeted(GrpcConnector(owner.address))
        for number in (1, 2, 3):
            wait = pb.CallRequest(target=gate.ref.to_message(), method="wait")
            await stream.send(Frame(number=number, request=Request(call=wait)))
        answer = await stream.receive()
        assert (answer.number, answer.reply.error.code) == (3, ErrorCode.ERROR_OVERLOADED)
        assert "2 requests of this session are in flight already" in answer.reply.error.message
        await gate.open()
        assert {(await stream.receive()).number for _ in range(2)} == {1, 2}
        # It was not taken up, so it may be sent again.
        wait = pb.CallRequest(target=gate.ref.to_message(), method="wait")
        await stream.send(Frame(number=3, request=Request(call=wait)))
        assert (await stream.receive()).reply.call.result.text == "through"


async def test_a_request_that_was_answered_and_confirmed_is_not_run_again() -> None:
    async with serving() as owner, tc.connect(owner.address) as ps:
        counter = await ps.create(COUNTER)
        stream = await HandMade.greeted(GrpcConnector(owner.address))
        add = Frame(number=1, request=Request(call=pb.CallRequest(target=counter.ref.to_message(), method="add")))
        for _ in range(3):
            await stream.send(add)
            assert (await stream.receive()).reply.call.result.integer == 1
        await stream.send(Frame(confirm=Confirm(numbers=[1])))
        await stream.send(add)
        assert (await stream.receive()).reply.error.code == ErrorCode.ERROR_SESSION_LOST
        assert await counter.get() == 1
