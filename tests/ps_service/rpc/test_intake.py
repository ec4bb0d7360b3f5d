"""Tests that what arrives on a stream counts towards the budget for as long as it is there, and no longer."""

from __future__ import annotations

import asyncio

import pytest

from ps_service.engine import Engine
from ps_service.rpc.intake import Intake
from ps_wire.connections.assembler import Message
from ps_wire.connections.frames import Packet
from ps_wire.errors import InvalidArgumentError
from ps_wire.limits import MIB
from ps_wire.v1.frames_pb2 import Cancel, Frame, Part, Request

ANNA = b"a" * 16


def begin(number: int, announced: int, payload: bytes = b"") -> Packet:
    return Packet(Frame(number=number, request=Request(), payload_bytes=announced), _chunks(payload))


def part(number: int, offset: int, payload: bytes, announced: int = 0) -> Packet:
    return Packet(Frame(number=number, part=Part(offset=offset), payload_bytes=announced), _chunks(payload))


def _chunks(payload: bytes) -> tuple[memoryview, ...]:
    return (memoryview(payload),) if payload else ()


def test_a_message_counts_until_it_is_whole(engine: Engine) -> None:
    intake = Intake(engine, engine.sessions.open(ANNA))
    assert intake.take(begin(1, MIB, b"x")) is None
    assert engine.budget.requests == MIB
    message = intake.take(part(1, 1, bytes(MIB - 1)))
    assert isinstance(message, Message) and message.payload is not None and len(message.payload) == MIB
    assert engine.budget.requests == 0


async def test_a_message_that_arrives_whole_counts_nowhere_also_if_it_has_waited(engine: Engine) -> None:
    intake, most = Intake(engine, engine.sessions.open(ANNA)), engine.limits.max_session_bytes
    assert isinstance(intake.take(begin(1, MIB, bytes(MIB))), Message)
    assert engine.budget.requests == 0
    engine.budget.take(engine.budget.of(ANNA), most)
    pausing = intake.take(begin(2, MIB, bytes(MIB)))
    assert isinstance(pausing, asyncio.Task)
    await asyncio.sleep(0)
    engine.budget.release(engine.budget.of(ANNA), most)
    message = await pausing
    assert message is not None and message.payload is not None and len(message.payload) == MIB
    assert engine.budget.requests == 0 and not intake.begun


@pytest.mark.parametrize("announced", [1, 2 * MIB, 1 << 62])
def test_a_part_that_announces_a_payload_of_its_own_is_refused_and_counts_nowhere(
    engine: Engine, announced: int
) -> None:
    intake = Intake(engine, engine.sessions.open(ANNA))
    intake.take(begin(1, MIB, b"x"))
    with pytest.raises(InvalidArgumentError, match="a part of message 1 announces a payload"):
        intake.take(part(1, 1, b"y", announced))
    assert engine.budget.requests == MIB
    intake.close()
    assert engine.budget.requests == 0


def test_a_message_that_is_cancelled_while_it_arrives_counts_until_it_is_whole(engine: Engine) -> None:
    intake = Intake(engine, engine.sessions.open(ANNA))
    intake.take(begin(1, MIB, b"x"))
    message = intake.take(Packet(Frame(number=1, cancel=Cancel())))
    assert isinstance(message, Message) and message.frame.HasField("cancel")
    assert engine.budget.requests == MIB
    intake.take(part(1, 1, bytes(MIB - 1)))
    assert engine.budget.requests == 0


async def test_a_message_that_waits_for_space_when_its_stream_ends_counts_nowhere(engine: Engine) -> None:
    intake, most = Intake(engine, engine.sessions.open(ANNA)), engine.limits.max_session_bytes
    intake.take(begin(1, most, b"x"))
    pausing = intake.take(begin(2, MIB, b"x"))
    assert isinstance(pausing, asyncio.Task)
    intake.close()
    assert engine.budget.requests == 0
    with pytest.raises(asyncio.CancelledError):
        await pausing
    assert engine.budget.requests == 0
