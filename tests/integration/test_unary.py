"""The plain unary methods: the same operations for grpcurl and other languages, with stock gRPC stubs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import torch
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import trainer_client as tc
from ps_service.requests.operations import OPERATIONS
from ps_service.rpc.unary_metadata import STATUS
from ps_service.server import Server
from ps_wire import errors
from ps_wire.codec.payload import PayloadReader
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import BY_CODE
from ps_wire.limits import Limits
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1 import owner_pb2
from ps_wire.v1.errors_pb2 import Error, ErrorCode
from ps_wire.v1.frames_pb2 import Reply, Request
from ps_wire.v1.owner_pb2_grpc import OwnerStub
from ps_wire.v1.values_pb2 import Handle, Value
from tests.integration.support import COUNTER, GATE, MODELS, bits, serving, until

TRAINER = bytes(range(16))
ME = (("ps-trainer", TRAINER.hex()),)


@pytest.fixture
async def roomy() -> AsyncIterator[Server]:
    async with serving(threads=6) as server:
        yield server


@pytest.fixture
async def stub(roomy: Server) -> AsyncIterator[OwnerStub]:
    async with grpc.aio.insecure_channel(roomy.address) as channel:
        yield OwnerStub(channel)


def encoded(value: Any) -> Value:
    """With the bytes of tensors inside the message."""
    return Encoder(None).encode(value)


def decoded(message: Value) -> Any:
    return Decoder(PayloadReader()).decode(message)


def create(class_name: str, *args: Any, **fields: Any) -> pb.CreateRequest:
    return pb.CreateRequest(class_name=class_name, args=encoded(args), **fields)


def call(target: Handle, method: str, *args: Any, **fields: Any) -> pb.CallRequest:
    return pb.CallRequest(target=target, method=method, args=encoded(args), **fields)


async def error_of(failing: Any) -> tuple[grpc.StatusCode, errors.PsError]:
    """The status of a failed call, and the error in its trailer."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await failing
    trailer = dict(caught.value.trailing_metadata())["ps-error-bin"]
    error = errors.from_message(Error.FromString(trailer))
    assert caught.value.details() in str(error)
    return caught.value.code(), error


async def test_a_model_is_trained_with_stock_stubs_as_it_is_locally(stub: OwnerStub) -> None:
    made = await stub.Create(create("torch.nn.Linear", 3, 2, name="net", seed=0), metadata=ME)
    assert made.created and [each.name for each in made.object.parameters] == ["weight", "bias"]
    net = made.object.handle
    again = await stub.Create(create("torch.nn.Linear", 3, 2, name="net", seed=0), metadata=ME)
    assert not again.created and again.object.handle == net
    assert (await stub.Attach(pb.AttachRequest(name="net"), metadata=ME)).object.handle == net
    group = pb.ParameterGroup(
        parameters=[Handle(owner="ps0", object_id=net.object_id, parameter=name) for name in ("weight", "bias")]
    )
    optimizer = pb.OptimizerRequest(class_name="torch.optim.SGD", groups=[group], options=encoded({"lr": 0.1}))
    opt = (await stub.Optimizer(optimizer, metadata=ME)).object.handle

    torch.manual_seed(0)
    local = torch.nn.Linear(3, 2)
    local_opt = torch.optim.SGD(local.parameters(), lr=0.1)
    for number in (1, 2, 3):
        x = torch.full((4, 3), float(number), requires_grad=True)
        context = pb.ContextId(trainer=TRAINER, number=number)
        reply = await stub.Call(call(net, "", x, context=context, call=1, training=True), metadata=ME)
        y = decoded(reply.result).requires_grad_()
        loss = y.square().sum()
        loss.backward()
        backward = pb.BackwardRequest(context=context, call=1, outputs=[0], gradients=encoded([y.grad]))
        (gradient,) = decoded((await stub.Backward(backward, metadata=ME)).gradients)

        local_opt.zero_grad()
        local(x).square().sum().backward()
        assert torch.equal(gradient, x.grad)
        remote = await stub.Gradients(pb.GradientsRequest(context=context), metadata=ME)
        assert [each.parameter for each in remote.parameters] == ["weight", "bias"]
        for one, parameter in zip(decoded(remote.gradients), local.parameters(), strict=True):
            torch.testing.assert_close(one, parameter.grad)
        norm = pb.NormRequest(context=context, parameters=group.parameters, norm_type=2.0)
        expected = sum(float(parameter.grad.norm()) ** 2 for parameter in local.parameters())
        assert (await stub.Norm(norm, metadata=ME)).power_sum == pytest.approx(expected)
        await stub.Scale(pb.ScaleRequest(context=context, parameters=group.parameters, factor=0.5), metadata=ME)
        for parameter in local.parameters():
            parameter.grad *= 0.5
        local_opt.step()
        assert (await stub.Step(pb.StepRequest(optimizer=opt, context=context), metadata=ME)).version == number
        await stub.EndContext(pb.EndContextRequest(context=context), metadata=ME)
    state = decoded((await stub.State(pb.StateRequest(target=net))).state)
    for name, value in local.state_dict().items():
        torch.testing.assert_close(state[name], value)


async def test_the_other_operations_work_too(stub: OwnerStub, roomy: Server) -> None:
    net = (await stub.Create(create("torch.nn.Linear", 2, 2, name="net"), metadata=ME)).object.handle
    weight = Handle(owner="ps0", object_id=net.object_id, parameter="weight")
    group = pb.ParameterGroup(parameters=[weight])
    optimizer = pb.OptimizerRequest(class_name="torch.optim.SGD", groups=[group], options=encoded({"lr": 0.1}))
    opt = (await stub.Optimizer(optimizer, metadata=ME)).object.handle
    scheduler = pb.SchedulerRequest(class_name="torch.optim.lr_scheduler.StepLR", optimizer=opt, args=encoded((1,)))
    plan = (await stub.Scheduler(scheduler, metadata=ME)).object.handle
    assert decoded((await stub.Call(call(plan, "step"), metadata=ME)).result) == pytest.approx([0.01])
    await stub.SetOptions(pb.SetOptionsRequest(optimizer=opt, options=encoded({"lr": 3.0})), metadata=ME)
    assert decoded((await stub.State(pb.StateRequest(target=opt))).state)["param_groups"][0]["lr"] == 3.0
    state = {"weight": torch.eye(2), "bias": torch.zeros(2)}
    await stub.LoadState(pb.LoadStateRequest(target=net, state=encoded(state), strict=True), metadata=ME)
    assert torch.equal(decoded((await stub.Fetch(pb.FetchRequest(target=weight))).value), torch.eye(2))
    status = await stub.Status(pb.StatusRequest())
    assert (status.owner, status.serving, status.parameters, status.objects[0].name) == ("ps0", True, 6, "net")
    await stub.Delete(pb.DeleteRequest(name="net"), metadata=ME)
    assert len(roomy.engine.registry) == 0


async def test_anonymous_objects_are_counted_and_released(stub: OwnerStub, roomy: Server) -> None:
    made = (await stub.Create(create(COUNTER, 5), metadata=ME)).object.handle
    kept = await stub.Call(call(made, "hand_out", [1, 2], keep=False), metadata=ME)
    assert len(roomy.engine.registry) == 2
    await stub.Release(pb.ReleaseRequest(object_ids=[made.object_id, kept.result.handle.object_id]), metadata=ME)
    assert len(roomy.engine.registry) == 0
    status, error = await error_of(stub.Call(call(made, "get"), metadata=ME))
    assert status is grpc.StatusCode.NOT_FOUND and isinstance(error, tc.errors.StaleHandleError)


async def test_the_references_of_a_unary_trainer_end_with_its_lease() -> None:
    async with serving(Limits(lease_seconds=0.1)) as owner, tc.connect(owner.address) as watch:
        async with grpc.aio.insecure_channel(owner.address) as channel:
            made = await OwnerStub(channel).Create(create(COUNTER), metadata=ME)
        assert made.object.handle.object_id
        await until(watch, lambda status: status.sessions == 1)
        assert owner.engine.counters.sessions_ended["lease"] == 1
        assert len(owner.engine.registry) == 0 and len(owner.engine.reply_cache) == 0


async def test_the_lease_of_a_unary_trainer_does_not_run_while_it_waits() -> None:
    async with (
        serving(Limits(lease_seconds=0.04), threads=6) as owner,
        tc.connect(owner.address) as watch,
        grpc.aio.insecure_channel(owner.address) as channel,
    ):
        stub, gate = OwnerStub(channel), await watch.create(GATE)
        waiting = asyncio.ensure_future(stub.Call(call(gate.ref.to_message(), "wait"), metadata=ME))
        await gate.wait_for(1)
        # Another trainer comes later, does not wait, and is swept away.
        await stub.Create(create(COUNTER), metadata=(("ps-trainer", "ee" * 16),))
        await until(watch, lambda status: len(status.objects) == 1)
        lives = owner.engine.sessions.get(TRAINER) is not None
        await gate.open()
        assert lives
        assert decoded((await waiting).result) == "through"


async def test_errors_carry_their_status_and_themselves(stub: OwnerStub) -> None:
    net = (await stub.Create(create("torch.nn.Linear", 2, 2, name="net"), metadata=ME)).object.handle
    counter = (await stub.Create(create(COUNTER, name="counter"), metadata=ME)).object.handle
    context = pb.ContextId(trainer=TRAINER, number=1)
    ended = pb.ContextId(trainer=TRAINER, number=2)
    await stub.EndContext(pb.EndContextRequest(context=ended), metadata=ME)
    foreign = Handle(owner="ps7", object_id="0" * 32)
    rows: list[tuple[Any, grpc.StatusCode, type[tc.PsError]]] = [
        (stub.Attach(pb.AttachRequest(name="x"), metadata=ME), grpc.StatusCode.NOT_FOUND, tc.errors.UnknownNameError),
        (stub.Create(create("os.system"), metadata=ME), grpc.StatusCode.PERMISSION_DENIED, tc.errors.NotAllowedError),
        (
            stub.Create(create(COUNTER, 9, name="net"), metadata=ME),
            grpc.StatusCode.ALREADY_EXISTS,
            tc.errors.NameConflictError,
        ),
        (stub.Fetch(pb.FetchRequest(target=foreign)), grpc.StatusCode.INVALID_ARGUMENT, tc.errors.ForeignHandleError),
        (stub.Fetch(pb.FetchRequest(target=net)), grpc.StatusCode.INVALID_ARGUMENT, tc.errors.InvalidArgumentError),
        (stub.Call(call(counter, "fail", "on purpose"), metadata=ME), grpc.StatusCode.UNKNOWN, tc.errors.RemoteError),
        (
            stub.Call(call(net, "", torch.ones(1, 2), context=ended, call=1), metadata=ME),
            grpc.StatusCode.FAILED_PRECONDITION,
            tc.errors.ContextEndedError,
        ),
        (
            stub.Backward(pb.BackwardRequest(context=context, call=1, gradients=encoded([])), metadata=ME),
            grpc.StatusCode.ABORTED,
            tc.errors.ContextLostError,
        ),
    ]
    for failing, status, kind in rows:
        code, error = await error_of(failing)
        assert code == status and isinstance(error, kind)
    code, error = await error_of(stub.Call(call(counter, "fail", "on purpose"), metadata=ME))
    assert isinstance(error, tc.errors.RemoteError) and error.remote_type == "builtins.ValueError"
    assert "hosted_models.py" in error.remote_traceback


def test_every_error_has_a_status() -> None:
    assert set(STATUS) == set(BY_CODE) == set(ErrorCode.values()) - {ErrorCode.ERROR_UNSPECIFIED}


def test_every_operation_has_a_method_of_its_own() -> None:
    methods = {method.name for method in owner_pb2.DESCRIPTOR.services_by_name["Owner"].methods}
    operations = {"".join(part.title() for part in name.split("_")) for name in OPERATIONS}
    assert methods == operations | {"Session"}
    for message, oneof in ((Request, "operation"), (Reply, "outcome")):
        fields = {field.name for field in message.DESCRIPTOR.oneofs_by_name[oneof].fields}
        assert fields - {"error"} == set(OPERATIONS)


async def test_a_caller_without_an_id_is_told_how_to_give_one(stub: OwnerStub) -> None:
    wrong: list[tuple[tuple[str, str], ...]] = [
        (),
        (("ps-trainer", "me"),),
        (("ps-trainer", "00" * 15),),
        (*ME, ("ps-number", "first")),
        (*ME, ("ps-number", "-1")),
    ]
    for metadata in wrong:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Create(create(COUNTER), metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        details = caught.value.details() or ""
        assert "ps-trainer (32 hexadecimal digits of your choice" in details and "ps-number (1, 2, 3" in details
    # Looking needs no name.
    assert (await stub.Status(pb.StatusRequest())).sessions == 0


async def test_a_number_makes_a_repeated_request_exact(stub: OwnerStub) -> None:
    counter = (await stub.Create(create(COUNTER), metadata=ME)).object.handle
    for _ in range(3):
        reply = await stub.Call(call(counter, "add", 5), metadata=(*ME, ("ps-number", "1")))
        assert decoded(reply.result) == 5
    reply = await stub.Call(call(counter, "add", 5), metadata=(*ME, ("ps-number", "2")))
    assert decoded(reply.result) == 10
    # Without a number it is run again.
    assert decoded((await stub.Call(call(counter, "add", 5), metadata=ME)).result) == 15
    # Numbers are a trainer's own.
    other = (("ps-trainer", "ff" * 16), ("ps-number", "2"))
    assert decoded((await stub.Call(call(counter, "add", 5), metadata=other)).result) == 20


async def test_a_repeated_step_is_applied_once(stub: OwnerStub) -> None:
    net = (await stub.Create(create("torch.nn.Linear", 2, 2, name="net"), metadata=ME)).object.handle
    weight = Handle(owner="ps0", object_id=net.object_id, parameter="weight")
    optimizer = pb.OptimizerRequest(
        class_name="torch.optim.SGD",
        groups=[pb.ParameterGroup(parameters=[weight])],
        options=encoded({"lr": 0.1, "momentum": 0.9}),
    )
    opt = (await stub.Optimizer(optimizer, metadata=ME)).object.handle
    context = pb.ContextId(trainer=TRAINER, number=1)
    await stub.Call(call(net, "", torch.ones(1, 2), context=context, call=1), metadata=ME)
    backward = pb.BackwardRequest(context=context, call=1, outputs=[0], gradients=encoded([torch.ones(1, 2)]))
    await stub.Backward(backward, metadata=ME)
    step = pb.StepRequest(optimizer=opt, context=context)
    states = []
    for _ in range(3):
        assert (await stub.Step(step, metadata=(*ME, ("ps-number", "1")))).version == 1
        states.append(bits(decoded((await stub.State(pb.StateRequest(target=net))).state)))
    assert states[0] == states[1] == states[2]
    # An error is an answer like any other: it is given again.
    for _ in range(2):
        bad = pb.StepRequest(optimizer=net, context=context)
        _, error = await error_of(stub.Step(bad, metadata=(*ME, ("ps-number", "2"))))
        assert isinstance(error, tc.errors.InvalidArgumentError)


async def test_a_request_that_is_repeated_while_it_runs_is_not_run_twice(stub: OwnerStub, roomy: Server) -> None:
    gate = (await stub.Create(create(GATE, name="gate"), metadata=ME)).object.handle
    numbered = (*ME, ("ps-number", "1"))
    first = asyncio.ensure_future(stub.Call(call(gate, "wait"), metadata=numbered))
    assert decoded((await stub.Call(call(gate, "wait_for", 1), metadata=ME)).result) == 1
    second = asyncio.ensure_future(stub.Call(call(gate, "wait"), metadata=numbered))
    # The second is there once it is counted among the methods that are open.
    await stub.Status(pb.StatusRequest())
    await stub.Call(call(gate, "open"), metadata=ME)
    assert [decoded(reply.result) for reply in await asyncio.gather(first, second)] == ["through"] * 2
    assert roomy.engine.registry.named("gate").value.inside == 1


async def test_a_number_stands_for_one_request_only(stub: OwnerStub) -> None:
    counter = (await stub.Create(create(COUNTER), metadata=(*ME, ("ps-number", "1")))).object.handle
    code, error = await error_of(stub.Call(call(counter, "add"), metadata=(*ME, ("ps-number", "1"))))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "ps-number 1 was another request's; count on with each new one" in str(error)


async def test_a_repeated_request_gets_the_answer_that_its_first_caller_did_not_wait_for(stub: OwnerStub) -> None:
    gate = (await stub.Create(create(GATE, name="gate"), metadata=ME)).object.handle
    numbered = (*ME, ("ps-number", "1"))
    impatient = stub.Call(call(gate, "wait"), metadata=numbered)
    assert decoded((await stub.Call(call(gate, "wait_for", 1), metadata=ME)).result) == 1
    impatient.cancel()
    await stub.Call(call(gate, "open"), metadata=ME)
    assert decoded((await stub.Call(call(gate, "wait"), metadata=numbered)).result) == "through"
    assert decoded((await stub.Call(call(gate, "wait_for", 1), metadata=ME)).result) == 1


async def test_draining_waits_for_unary_requests_too(stub: OwnerStub, roomy: Server) -> None:
    gate = (await stub.Create(create(GATE, name="gate"), metadata=ME)).object.handle
    waiting = [
        asyncio.ensure_future(stub.Call(call(gate, "wait"), metadata=metadata))
        for metadata in (ME, (*ME, ("ps-number", "1")))
    ]
    assert decoded((await stub.Call(call(gate, "wait_for", 2), metadata=ME)).result) == 2
    draining = asyncio.create_task(roomy.drain(20))
    while (await stub.Status(pb.StatusRequest())).serving:
        pass
    code, error = await error_of(stub.Create(create(COUNTER), metadata=ME))
    assert code is grpc.StatusCode.UNAVAILABLE and isinstance(error, tc.errors.UnavailableError)
    assert not any(each.done() for each in waiting)
    roomy.engine.registry.named("gate").value.open()
    assert [decoded(reply.result) for reply in await asyncio.gather(*waiting)] == ["through"] * 2
    await draining


async def test_long_errors_arrive_shortened(stub: OwnerStub) -> None:
    counter = (await stub.Create(create(COUNTER), metadata=ME)).object.handle
    code, error = await error_of(stub.Call(call(counter, "fail", "grüße " * 5000), metadata=ME))
    assert code is grpc.StatusCode.UNKNOWN and isinstance(error, tc.errors.RemoteError)
    assert error.remote_message.startswith("grüße grüße") and error.remote_type == "builtins.ValueError"


async def test_a_deadline_and_a_cancellation_reach_the_owner(stub: OwnerStub, roomy: Server) -> None:
    gate = (await stub.Create(create(GATE, name="gate"), metadata=ME)).object.handle
    hosted, seconds = roomy.engine.registry.named("gate").value, 0.05
    while hosted.inside == 0:  # its time ends on the way
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Call(call(gate, "wait"), metadata=ME, timeout=seconds)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        seconds *= 2
    pending = stub.Call(call(gate, "wait"), metadata=ME)
    assert decoded((await stub.Call(call(gate, "wait_for", hosted.inside + 1), metadata=ME)).result) > 1
    pending.cancel()
    while (await stub.Status(pb.StatusRequest())).requests_in_flight > 0:
        pass
    await stub.Call(call(gate, "open"), metadata=ME)
    assert roomy.engine.counters.running == 0


async def test_large_replies_have_a_limit_of_their_own(stub: OwnerStub) -> None:
    loud = (await stub.Create(create(f"{MODELS}.Loud"), metadata=ME)).object.handle
    code, error = await error_of(stub.Call(call(loud, "zeros", 17 << 20), metadata=ME))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and isinstance(error, tc.errors.TooLargeError)
    assert decoded((await stub.Call(call(loud, "zeros", 3), metadata=ME)).result).tolist() == [0.0] * 3


async def test_reflection_lists_the_service(roomy: Server) -> None:
    async with grpc.aio.insecure_channel(roomy.address) as channel:
        asking = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await asking.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = [service.name for service in (await asking.read()).list_services_response.service]
        assert {"ps_wire.v1.Owner", "grpc.health.v1.Health"} <= set(listed)
        await asking.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="ps_wire.v1.Owner"))
        assert (await asking.read()).file_descriptor_response.file_descriptor_proto
        await asking.done_writing()


async def test_bytes_that_are_no_message_are_refused_with_one_line_in_the_log(
    roomy: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with grpc.aio.insecure_channel(roomy.address) as channel:
        for method in ("Status", "Create", "Call"):
            caplog.clear()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(f"/ps_wire.v1.Owner/{method}")(b"\xff\xff\xff", metadata=ME)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert f"this is no {method}Request" in str(caught.value.details())
            (line,) = caplog.records
            assert line.exc_info is None and f"this is no {method}Request" in line.getMessage()
