"""Whatever a request does, there is one answer, the counters know it, and the owner goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

from ps_service.engine import Engine
from ps_service.hosting import creation
from ps_service.hosting.allowlist import AllowList
from ps_service.hosting.objects import HostedObject
from ps_service.requests.execution import answer as answer_to
from ps_service.requests.operations import OPERATIONS
from ps_service.sessions.gate import Gate
from ps_service.sessions.reply_cache import Answer
from ps_wire.codec.payload import PayloadWriter, joined
from ps_wire.codec.values import Encoder
from ps_wire.errors import (
    CancelledCallError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotAllowedError,
    RemoteError,
    StaleHandleError,
    TooLargeError,
    UnavailableError,
    from_message,
)
from ps_wire.limits import MIB, Limits
from ps_wire.v1 import operations_pb2 as pb
from tests.ps_service import service_models
from tests.ps_service.service_models import Latch

TRAINER = b"t" * 16


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine("ps0", AllowList([service_models]), limits=Limits(max_message_bytes=MIB))
    yield engine
    engine.close()


def make(engine: Engine, name: str, *args: Any) -> HostedObject:
    made, _ = creation.create(engine, f"tests.ps_service.service_models.{name}", args, {})
    return made


def call(target: HostedObject, method: str, *args: Any, keep: bool = False) -> tuple[pb.CallRequest, Any]:
    """A request, and the bytes of its tensors."""
    payload = PayloadWriter()
    request = pb.CallRequest(target=target.ref.to_message(), method=method, keep=keep)
    Encoder(payload).encode_into(request.args, args)
    return request, joined(payload.chunks, payload.nbytes) if payload.nbytes else None


async def ask(engine: Engine, target: HostedObject, method: str, *args: Any, **options: Any) -> Answer:
    request, payload = call(target, method, *args)
    return await answer_to(engine, TRAINER, OPERATIONS["call"], request, payload, **options)


def error_of(answer: Answer) -> Any:
    assert answer.reply.HasField("error")
    assert (answer.chunks, answer.nbytes, answer.granted) == ([], 0, [])
    return from_message(answer.reply.error)


async def test_an_answer_has_the_reply_its_payload_and_its_references(engine: Engine) -> None:
    answer = await ask(engine, make(engine, "Wide"), "", torch.ones(3), 2)
    assert answer.reply.WhichOneof("outcome") == "call"
    assert list(answer.reply.call.result.tensor.shape) == [6]
    assert answer.nbytes == sum(map(len, answer.chunks)) == 24
    assert answer.granted == []
    created = await answer_to(engine, TRAINER, OPERATIONS["create"], pb.CreateRequest(class_name="torch.nn.ReLU"))
    assert created.granted == [created.reply.create.object.handle.object_id]


async def test_an_empty_reply_is_a_reply(engine: Engine) -> None:
    answer = await answer_to(engine, TRAINER, OPERATIONS["release"], pb.ReleaseRequest())
    assert answer.reply.WhichOneof("outcome") == "release"


async def test_inline_tensors_stand_in_the_message(engine: Engine) -> None:
    answer = await ask(engine, make(engine, "Wide"), "", torch.ones(3), 2, embed=True)
    assert len(answer.reply.call.result.tensor.data) == 24
    assert answer.nbytes == 0


@pytest.mark.parametrize("kind", sorted(service_models.KINDS))
async def test_whatever_hosted_code_raises_is_told_with_its_type(engine: Engine, kind: str) -> None:
    answer = await asyncio.wait_for(ask(engine, make(engine, "Raiser"), "fail", kind, timeout_seconds=60.0), 20)
    error = error_of(answer)
    assert isinstance(error, RemoteError)
    assert error.remote_type.endswith(f".{kind}")
    assert "on purpose" in error.remote_message
    assert 'raise KINDS[kind]("on purpose")' in error.remote_traceback
    again = await ask(engine, make(engine, "Wide"), "", torch.ones(3), 2)
    assert not again.reply.HasField("error")


async def test_a_traceback_begins_where_hosted_code_does_and_tells_the_cause(engine: Engine) -> None:
    error = error_of(await ask(engine, make(engine, "Raiser"), "fail_inside"))
    assert "service_models.py" in error.remote_traceback
    assert "KeyError: 'missing'" in error.remote_traceback
    assert "direct cause" in error.remote_traceback
    assert "ps_service/rpc" not in error.remote_traceback
    assert "ps_service/engine" not in error.remote_traceback


async def test_a_message_without_end_is_shortened_in_the_middle(engine: Engine) -> None:
    error = error_of(await ask(engine, make(engine, "Raiser"), "fail_at_length", 2 * MIB))
    assert error.remote_message.startswith("beginx")
    assert error.remote_message.endswith("xend")
    assert "characters left out" in error.remote_message
    assert len(error.remote_message) + len(error.remote_traceback) < MIB


async def test_an_exception_whose_str_raises_is_reported_nevertheless(engine: Engine) -> None:
    error = error_of(await ask(engine, make(engine, "Raiser"), "fail_speechless"))
    assert error.remote_type == "tests.ps_service.service_models.Unspeakable"
    assert error.remote_message == "<it could not say what is wrong>"
    assert "raise Unspeakable" in error.remote_traceback


async def test_errors_of_the_caller_keep_their_type(engine: Engine) -> None:
    raiser = make(engine, "Raiser")
    assert type(error_of(await ask(engine, raiser, "__init__"))) is NotAllowedError
    engine.registry.grant(TRAINER, raiser)
    engine.registry.revoke(TRAINER, [raiser.ref.object_id])
    assert type(error_of(await ask(engine, raiser, "fail", "ValueError"))) is StaleHandleError


async def test_a_result_that_cannot_travel_is_an_error_of_the_call(engine: Engine) -> None:
    error = error_of(await ask(engine, make(engine, "Wide"), "unsendable"))
    assert type(error) is InvalidArgumentError
    assert "builtins.object cannot be sent" in str(error)


async def test_a_fault_of_the_owner_itself_stays_in_its_log(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    broken = make(engine, "Raiser")
    broken.methods = None  # type: ignore[assignment, method-assign]
    with caplog.at_level(logging.ERROR, "ps_service.requests.error_answers"):
        request = pb.AttachRequest(handle=broken.ref.to_message())
        error = error_of(await answer_to(engine, TRAINER, OPERATIONS["attach"], request))
    assert type(error) is InternalError
    assert str(error) == "attach failed inside the owner; its log says why (TypeError)"
    assert "NoneType" in caplog.text
    assert broken.references == 0, "what was granted is taken back"


async def test_a_reply_over_the_limit_is_not_sent(engine: Engine) -> None:
    error = error_of(await ask(engine, make(engine, "Wide"), "", torch.ones(MIB // 4), 2))
    assert type(error) is TooLargeError
    assert "2,097,152 bytes of tensors; the limit is 1,048,576" in str(error)
    assert not (await ask(engine, make(engine, "Wide"), "", torch.ones(MIB // 4), 1)).reply.HasField("error")


async def test_references_of_a_reply_over_the_limit_are_taken_back(engine: Engine) -> None:
    before = len(engine.registry)
    wide = make(engine, "Wide")
    request, payload = call(wide, "", torch.ones(MIB // 4), 2, keep=True)
    kept = await answer_to(engine, TRAINER, OPERATIONS["call"], request, payload)
    assert len(kept.granted) == 1, "a handle is small"
    error = error_of(
        await answer_to(engine, TRAINER, OPERATIONS["fetch"], pb.FetchRequest(target=kept.reply.call.result.handle))
    )
    assert type(error) is TooLargeError
    engine.registry.revoke(TRAINER, kept.granted)
    assert len(engine.registry) == before + 1


async def test_a_deadline_is_kept_although_the_work_goes_on(engine: Engine) -> None:
    hosted = make(engine, "Latch")
    latch: Latch = hosted.value
    # On a busy machine a deadline may pass before the work begins.
    for seconds in 0.01, 0.1, 1.0, 10.0:
        error = error_of(await ask(engine, hosted, "wait", timeout_seconds=seconds))
        assert type(error) is DeadlineExceededError
        assert str(error).startswith("RPC ran for more than its timeout: ")
        assert str(error).endswith(f"Latch.wait on owner {engine.name!r} was not finished within {seconds:g} s")
        if latch.begun.is_set():
            break
    assert not latch.ended.is_set()
    latch.opened.set()
    assert await asyncio.to_thread(latch.ended.wait, 20)


async def test_a_cancelled_request_is_answered_too(engine: Engine) -> None:
    hosted = make(engine, "Latch")
    latch: Latch = hosted.value
    task = asyncio.create_task(ask(engine, hosted, "wait"))
    assert await asyncio.to_thread(latch.begun.wait, 20)
    task.cancel()
    assert type(error_of(await task)) is CancelledCallError
    latch.opened.set()
    assert await asyncio.to_thread(latch.ended.wait, 20)


@pytest.mark.parametrize("method", ["wait", "wait_and_keep"])
async def test_objects_that_a_cancelled_call_makes_are_freed(engine: Engine, method: str) -> None:
    hosted = make(engine, "Latch")
    latch: Latch = hosted.value
    before = len(engine.registry)
    request, payload = call(hosted, method, keep=method == "wait")
    task = asyncio.create_task(answer_to(engine, TRAINER, OPERATIONS["call"], request, payload))
    assert await asyncio.to_thread(latch.begun.wait, 20)
    task.cancel()
    await task
    latch.opened.set()
    await asyncio.to_thread(engine.close)  # waits for the thread that still works
    assert len(engine.registry) == before
    assert not engine.registry._holders


async def test_an_owner_that_drains_takes_no_new_work_and_still_tells_how_it_is(engine: Engine) -> None:
    wide = make(engine, "Wide")
    engine.gate.state = Gate.State.STOPPED
    error = error_of(await ask(engine, wide, "", torch.ones(3), 2))
    assert type(error) is UnavailableError
    assert "'ps0' is shutting down" in str(error)
    status = await answer_to(engine, TRAINER, OPERATIONS["status"], pb.StatusRequest())
    assert not status.reply.status.serving


async def test_every_request_is_counted(engine: Engine) -> None:
    raiser, wide = make(engine, "Raiser"), make(engine, "Wide")
    await ask(engine, wide, "", torch.ones(3), 2)
    await ask(engine, raiser, "fail", "ValueError")
    await answer_to(engine, TRAINER, OPERATIONS["release"], pb.ReleaseRequest())
    counts = engine.counters.operations()
    assert (counts["call"].durations.count, counts["call"].errors) == (2, 1)
    assert (counts["release"].durations.count, counts["release"].errors) == (1, 0)
    assert counts["call"].durations.sum > 0
    assert engine.counters.running == 0


async def test_a_request_is_counted_as_running_until_it_is_answered(engine: Engine) -> None:
    hosted = make(engine, "Latch")
    task = asyncio.create_task(ask(engine, hosted, "wait"))
    await asyncio.to_thread(hosted.value.begun.wait, 20)
    assert engine.counters.running == 1
    hosted.value.opened.set()
    await task
    assert engine.counters.running == 0
