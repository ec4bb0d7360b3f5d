"""Tests that answers are kept until they are confirmed."""

from __future__ import annotations

import pytest

from ps_service.sessions.reply_cache import Answer, ReplyCache
from ps_wire.errors import StaleHandleError, to_message
from ps_wire.v1.frames_pb2 import Frame, Reply
from ps_wire.v1.operations_pb2 import StepReply

ANNA, BERT = b"a" * 16, b"b" * 16


def answer(version: int, *chunks: bytes, granted: tuple[str, ...] = ()) -> Answer:
    return Answer(
        Frame(reply=Reply(step=StepReply(version=version))),
        [memoryview(chunk) for chunk in chunks],
        sum(map(len, chunks)),
        [*granted],
    )


@pytest.fixture
def reply_cache() -> ReplyCache:
    return ReplyCache()


def kept(reply_cache: ReplyCache, trainer: bytes) -> list[int]:
    return [number for number in range(1, 20) if reply_cache.recall(trainer, number) is not None]


async def test_a_new_cache_is_empty(reply_cache: ReplyCache) -> None:
    assert len(reply_cache) == 0
    assert reply_cache.recall(ANNA, 1) is None


async def test_an_answer_comes_back_whole(reply_cache: ReplyCache) -> None:
    reply_cache.record(ANNA, 1, answer(7, b"bytes", b" of ", b"a tensor", granted=("id", "id", "other")))
    found = reply_cache.recall(ANNA, 1)
    assert found is not None
    assert found.reply == Reply(step=StepReply(version=7))
    assert b"".join(found.chunks) == b"bytes of a tensor"
    assert found.nbytes == 17
    assert found.granted == ["id", "id", "other"]


async def test_errors_are_answers_too(reply_cache: ReplyCache) -> None:
    reply_cache.record(ANNA, 1, Answer(Frame(reply=Reply(error=to_message(StaleHandleError("gone")))), [], 0, []))
    found = reply_cache.recall(ANNA, 1)
    assert found is not None
    assert found.reply.error.message == "gone"


async def test_an_answer_may_be_asked_for_again_and_again(reply_cache: ReplyCache) -> None:
    reply_cache.record(ANNA, 1, answer(7, b"x"))
    assert [reply_cache.recall(ANNA, 1).reply.step.version for _ in range(3)] == [7, 7, 7]
    assert len(reply_cache) == 1


async def test_numbers_belong_to_their_trainer(reply_cache: ReplyCache) -> None:
    reply_cache.record(ANNA, 1, answer(1))
    reply_cache.record(BERT, 1, answer(2))
    assert reply_cache.recall(ANNA, 1).reply.step.version == 1
    assert reply_cache.recall(BERT, 1).reply.step.version == 2
    assert reply_cache.recall(ANNA, 2) is None
    assert len(reply_cache) == 2


async def test_confirmed_answers_are_dropped(reply_cache: ReplyCache) -> None:
    for number in (1, 2, 3):
        reply_cache.record(ANNA, number, answer(number))
        reply_cache.record(BERT, number, answer(number))
    reply_cache.forget(ANNA, [1, 3])
    assert kept(reply_cache, ANNA) == [2]
    assert kept(reply_cache, BERT) == [1, 2, 3]
    assert len(reply_cache) == 4


async def test_forgetting_an_unknown_answer_does_nothing(reply_cache: ReplyCache) -> None:
    reply_cache.record(ANNA, 1, answer(1))
    reply_cache.forget(ANNA, [2, 2, 10**18])
    reply_cache.forget(BERT, [1])
    reply_cache.forget(ANNA, [])
    assert kept(reply_cache, ANNA) == [1]


async def test_a_range_can_be_forgotten(reply_cache: ReplyCache) -> None:
    for number in range(1, 6):
        reply_cache.record(ANNA, number, answer(number))
    reply_cache.forget(ANNA, range(1, 4))
    assert kept(reply_cache, ANNA) == [4, 5]


async def test_only_the_given_answers_of_a_trainer_are_kept(reply_cache: ReplyCache) -> None:
    for number in (1, 2, 3, 4):
        reply_cache.record(ANNA, number, answer(number))
        reply_cache.record(BERT, number, answer(number))
    reply_cache.keep_only(ANNA, iter([2, 4, 9]))
    assert kept(reply_cache, ANNA) == [2, 4]
    assert kept(reply_cache, BERT) == [1, 2, 3, 4]


async def test_answers_after_the_last_number_are_kept(reply_cache: ReplyCache) -> None:
    for number in (1, 2, 3, 4):
        reply_cache.record(ANNA, number, answer(number))
    reply_cache.keep_only(ANNA, [1], 2)
    assert kept(reply_cache, ANNA) == [1, 3, 4]
    reply_cache.keep_only(ANNA, [], 0)
    assert kept(reply_cache, ANNA) == [1, 3, 4]


async def test_keeping_nothing_leaves_nothing(reply_cache: ReplyCache) -> None:
    reply_cache.record(ANNA, 1, answer(1))
    reply_cache.keep_only(ANNA, [])
    reply_cache.keep_only(BERT, [1])
    assert len(reply_cache) == 0


async def test_answers_go_on_after_keeping_some(reply_cache: ReplyCache) -> None:
    reply_cache.record(ANNA, 1, answer(1))
    reply_cache.keep_only(ANNA, [])
    reply_cache.record(ANNA, 2, answer(2))
    assert kept(reply_cache, ANNA) == [2]


async def test_a_trainer_that_is_gone_leaves_nothing(reply_cache: ReplyCache) -> None:
    reply_cache.record(ANNA, 1, answer(1))
    reply_cache.record(BERT, 1, answer(2))
    reply_cache.drop(ANNA)
    reply_cache.drop(ANNA)
    assert kept(reply_cache, ANNA) == []
    assert kept(reply_cache, BERT) == [1]
    assert len(reply_cache) == 1


async def test_answers_that_are_recorded_together_are_all_kept(reply_cache: ReplyCache) -> None:
    for number in range(1, 20):
        reply_cache.record(ANNA, number, answer(number))
    assert kept(reply_cache, ANNA) == list(range(1, 20))
    assert [reply_cache.recall(ANNA, number).reply.step.version for number in range(1, 20)] == list(range(1, 20))


async def test_trainers_that_come_and_go_leave_nothing(reply_cache: ReplyCache) -> None:
    for number in range(100):
        trainer = number.to_bytes(16)
        reply_cache.keep_only(trainer, [])
        reply_cache.record(trainer, 1, answer(1))
        reply_cache.forget(trainer, [1])
        reply_cache.drop(trainer)
    assert not reply_cache._answers and not reply_cache._nbytes


def test_the_bytes_of_kept_answers_are_counted() -> None:
    reply_cache = ReplyCache()
    frame = Frame()
    reply_cache.record(b"t", 1, Answer(frame, [], 100, []))
    reply_cache.record(b"t", 2, Answer(frame, [], 20, []))
    reply_cache.record(b"t", 2, Answer(frame, [], 30, []))
    reply_cache.record(b"o", 1, Answer(frame, [], 4, []))
    assert (reply_cache.nbytes_of(b"t"), reply_cache.nbytes_of(b"o"), reply_cache.nbytes) == (130, 4, 134)
    reply_cache.keep_only(b"t", [1])
    assert (reply_cache.nbytes_of(b"t"), reply_cache.nbytes) == (100, 104)
    reply_cache.forget(b"t", [1, 1])
    reply_cache.drop(b"o")
    assert (reply_cache.nbytes_of(b"t"), reply_cache.nbytes_of(b"o"), reply_cache.nbytes) == (0, 0, 0)
