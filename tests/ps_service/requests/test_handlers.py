"""Tests that every handler reads its request and fills in its reply."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ps_service.engine import Engine
from ps_service.requests.execution import answer
from ps_service.requests.inline import short
from ps_service.requests.operations import OPERATIONS
from ps_wire import errors
from ps_wire.codec.payload import PayloadWriter, joined
from ps_wire.codec.values import Encoder
from ps_wire.errors import (
    ContextEndedError,
    InvalidArgumentError,
    NameConflictError,
    PsError,
    RemoteError,
    StaleHandleError,
    UnknownNameError,
)
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Request
from tests.cases import case
from tests.ps_service.requests.asking import ANNA, BERT, ONE, Asker, parameter, python, value


@pytest.fixture
async def ask(engine: Engine) -> Asker:
    return Asker(engine)


# Objects


async def test_create_describes_the_new_object(ask: Asker) -> None:
    request = pb.CreateRequest(class_name="tests.hosted_models.Affine", args=value((2, 3)), name="net")
    reply = await ask("create", request)
    assert reply.created
    assert (reply.object.name, reply.object.class_name) == ("net", "tests.hosted_models.Affine")
    assert list(reply.object.methods) == ["forward", "both", "called"]
    assert [(each.name, list(each.shape), each.requires_grad) for each in reply.object.parameters] == [
        ("weight", [2, 3], True),
        ("bias", [3], True),
    ]
    assert ask.engine.registry.named("net").references == 1


async def test_create_is_asked_twice_and_makes_once(ask: Asker) -> None:
    request = pb.CreateRequest(class_name="torch.nn.Linear", args=value((2, 3)), name="net", seed=0)
    first = await ask("create", request)
    again = await ask("create", request, trainer=BERT)
    assert again.object.handle == first.object.handle
    assert (first.created, again.created) == (True, False)
    request.class_name = "torch.nn.modules.linear.Linear"
    assert not (await ask("create", request)).created, "another name of the same class"


@pytest.mark.parametrize(
    "change",
    [
        {"args": value((2, 4))},
        {"kwargs": value({"bias": False})},
        {"seed": 0},
        {"class_name": "torch.nn.Bilinear"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_create_of_the_same_name_with_something_else_is_a_conflict(ask: Asker, change: Any) -> None:
    same = {"class_name": "torch.nn.Linear", "args": value((2, 3)), "name": "net"}
    await ask("create", pb.CreateRequest(**same))
    with pytest.raises(NameConflictError):
        await ask("create", pb.CreateRequest(**{**same, **change}))
    assert ask.engine.registry.named("net").references == 1


async def test_tensors_among_the_arguments_tell_two_requests_apart(engine: Engine) -> None:
    def request(fill: float) -> tuple[pb.CreateRequest, Any]:
        payload = PayloadWriter()
        message = pb.CreateRequest(class_name="torch.nn.CrossEntropyLoss", name="loss")
        Encoder(payload).encode_into(message.args, (torch.full((3,), fill),))
        return message, joined(payload.chunks, payload.nbytes)

    first, again = [await answer(engine, ANNA, OPERATIONS["create"], *request(1.0)) for _ in range(2)]
    assert again.reply.create.object.handle == first.reply.create.object.handle
    other = await answer(engine, ANNA, OPERATIONS["create"], *request(2.0))
    assert other.reply.error.code == NameConflictError.code


async def test_attach_finds_by_name_and_handle_and_counts(ask: Asker) -> None:
    made = await ask.linear()
    for request in (pb.AttachRequest(name="net"), pb.AttachRequest(handle=made.handle)):
        assert (await ask("attach", request, trainer=BERT)).object.handle == made.handle
    assert ask.engine.registry.named("net").references == 3


async def test_release_gives_handles_back(ask: Asker) -> None:
    made = await ask.linear(name="")
    await ask("release", pb.ReleaseRequest(object_ids=[made.handle.object_id]), trainer=BERT)
    assert len(ask.engine.registry) == 1
    await ask("release", pb.ReleaseRequest(object_ids=[made.handle.object_id]))
    assert len(ask.engine.registry) == 0


async def test_delete_removes_a_name_and_its_optimizers(ask: Asker) -> None:
    made = await ask.linear()
    optimizer = await ask.optimizer(made)
    await ask("delete", pb.DeleteRequest(name="net"))
    for handle in (made.handle, optimizer.handle):
        with pytest.raises(StaleHandleError):
            await ask("attach", pb.AttachRequest(handle=handle))


# Calls


async def test_call_takes_arguments_of_both_kinds_and_a_method(ask: Asker) -> None:
    made = (await ask("create", pb.CreateRequest(class_name="tests.hosted_models.Counter"))).object
    request = pb.CallRequest(target=made.handle, method="echo", args=value((1, [2])), kwargs=value({"a": {"b": None}}))
    assert python((await ask("call", request)).result) == ((1, [2]), {"a": {"b": None}})
    assert python((await ask("call", pb.CallRequest(target=made.handle, method="add"))).result) == 1


@pytest.mark.parametrize("training", [True, False])
async def test_call_runs_in_the_mode_of_the_caller(ask: Asker, training: bool) -> None:
    made = (await ask("create", pb.CreateRequest(class_name="torch.nn.Dropout", args=value((1.0,))))).object
    request = pb.CallRequest(target=made.handle, args=value((torch.ones(2),)), training=training)
    assert python((await ask("call", request)).result).tolist() == ([0.0, 0.0] if training else [1.0, 1.0])


async def test_call_can_keep_its_result_here(ask: Asker) -> None:
    made = await ask.linear()
    request = pb.CallRequest(target=made.handle, args=value((torch.ones(1, 2),)), keep=True)
    kept = (await ask("call", request)).result.handle
    assert python((await ask("fetch", pb.FetchRequest(target=kept))).value).tolist() == [[3.0]]
    await ask("release", pb.ReleaseRequest(object_ids=[kept.object_id]))
    with pytest.raises(StaleHandleError):
        await ask("fetch", pb.FetchRequest(target=kept))


async def test_fetch_copies_a_parameter_and_refuses_a_module(ask: Asker) -> None:
    made = await ask.linear()
    assert await ask.weight(made) == [[1.0, 2.0]]
    with pytest.raises(InvalidArgumentError, match=r"ask for its state_dict\(\)"):
        await ask("fetch", pb.FetchRequest(target=made.handle))


# Passes


async def test_a_pass_from_forward_to_step(ask: Asker) -> None:
    made = await ask.linear()
    optimizer = await ask.optimizer(made)
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    assert (await ask.forward(made.handle, x)).tolist() == [[11.0]]
    assert [each.tolist() for each in await ask.backward([torch.ones(1, 1)])] == [[[1.0, 2.0]]]
    found = await ask("gradients", pb.GradientsRequest(context=ONE))
    assert list(found.parameters) == [parameter(made)]
    assert [each.tolist() for each in python(found.gradients)] == [[[3.0, 4.0]]]
    norm = pb.NormRequest(context=ONE, parameters=[parameter(made)], norm_type=2.0)
    assert (await ask("norm", norm)).power_sum == pytest.approx(25.0)
    await ask("scale", pb.ScaleRequest(context=ONE, parameters=[parameter(made)], factor=2.0))
    step = pb.StepRequest(optimizer=optimizer.handle, context=ONE)
    assert (await ask("step", step)).version == 1
    assert await ask.weight(made) == [[1.0 - 0.5 * 6.0, 2.0 - 0.5 * 8.0]]
    await ask("end_context", pb.EndContextRequest(context=ONE))
    with pytest.raises(ContextEndedError):
        await ask("step", step)


async def test_inputs_without_gradient_get_none(ask: Asker) -> None:
    made = await ask.linear()
    await ask.forward(made.handle, torch.ones(1, 2))
    assert await ask.backward([torch.ones(1, 1)]) == []


async def test_retain_graph_is_heeded(ask: Asker) -> None:
    made = await ask.linear()
    await ask.forward(made.handle, torch.ones(1, 2, requires_grad=True))
    await ask.backward([torch.ones(1, 1)], retain=True)
    await ask.backward([torch.ones(1, 1)])
    with pytest.raises(RemoteError, match="second time"):
        await ask.backward([torch.ones(1, 1)])


@pytest.mark.parametrize("gradients", [[], [1.0], [None], (torch.ones(1, 1),), [torch.ones(2, 1)], {"a": 1}], ids=repr)
async def test_gradients_that_are_none_are_refused(ask: Asker, gradients: Any) -> None:
    made = await ask.linear()
    await ask.forward(made.handle, torch.ones(1, 2))
    with pytest.raises(InvalidArgumentError):
        await ask.backward(gradients)
    assert not (await ask("gradients", pb.GradientsRequest(context=ONE))).parameters


@pytest.mark.parametrize(
    "context",
    [pb.ContextId(trainer=b"short", number=1), pb.ContextId(trainer=ANNA), pb.ContextId()],
    ids=["short", "0", ""],
)
async def test_a_context_is_named_in_full(ask: Asker, context: pb.ContextId) -> None:
    made = await ask.linear()
    optimizer = await ask.optimizer(made)
    requests: dict[str, Any] = {
        "backward": pb.BackwardRequest(gradients=value([])),
        "gradients": pb.GradientsRequest(),
        "norm": pb.NormRequest(norm_type=2.0),
        "scale": pb.ScaleRequest(factor=2.0),
        "end_context": pb.EndContextRequest(),
        "step": pb.StepRequest(optimizer=optimizer.handle),
        "call": pb.CallRequest(target=made.handle, args=value((torch.ones(1, 2),))),
    }
    named = "a context is named by the 16 bytes of its trainer, and a number"
    for operation, request in requests.items():
        request.context.CopyFrom(context)
        with case(operation), pytest.raises(InvalidArgumentError, match=named):
            await ask(operation, request)
        assert len(ask.engine.contexts) == 0, operation


# All of them


async def test_status_tells_everything(ask: Asker) -> None:
    made = await ask.linear()
    optimizer = await ask.optimizer(made)
    await ask.forward(made.handle, torch.ones(1, 2))
    with pytest.raises(UnknownNameError):
        await ask("attach", pb.AttachRequest(name="unknown"))
    status = await ask("status", pb.StatusRequest())
    assert (status.owner, status.serving, status.parameters, status.bytes) == ("ps0", True, 2, 8)
    assert (status.sessions, status.contexts, status.requests_in_flight) == (1, 1, 0)
    assert status.version and status.uptime_seconds > 0 and status.resident_bytes > 1 << 20
    (shown,) = status.objects
    assert (shown.name, shown.class_name, shown.parameters, shown.bytes, shown.references) == (
        "net",
        "torch.nn.Linear",
        2,
        8,
        1,
    )
    (one,) = status.optimizers
    assert (one.name, one.class_name, one.version, one.parameters) == (optimizer.name, "torch.optim.SGD", 0, 2)
    counts = {each.name: (each.calls, each.errors) for each in status.operations}
    assert counts["attach"] == (1, 1)
    assert counts["call"] == (1, 0)
    assert list(counts) == sorted(counts)
    assert "status" not in counts


def test_a_mutating_request_never_runs_twice() -> None:
    assert {name for name, operation in OPERATIONS.items() if not operation.mutates} == {
        "fetch",
        "gradients",
        "lookup",
        "members",
        "norm",
        "pull",
        "state",
        "status",
        "sessions",
        "history",
        "durable",
        "checkpoint",  # writes what there is; a second one replaces it, and changes no object
        "evict",  # ends what there is; there is nothing left to end the second time
    }


def test_only_short_requests_run_on_the_event_loop() -> None:
    assert {name for name, each in OPERATIONS.items() if each.expected_seconds not in (None, short)} == {
        "add_to_curves",
        "backward",
        "call",
        "push",
        "step",
    }
    assert {name for name, each in OPERATIONS.items() if each.expected_seconds is short} == {
        "attach",
        "release",
        "delete",
        "end_context",
        "sessions",
        "history",
        "evict",
    }


async def test_an_empty_request_is_answered_and_not_a_fault_of_the_owner(ask: Asker) -> None:
    for operation in OPERATIONS:
        request_class = type(getattr(Request(), operation))
        with case(operation):
            try:
                await ask(operation, request_class())
            except PsError as error:
                assert error.code != errors.InternalError.code, error
