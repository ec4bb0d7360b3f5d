"""Journals: one suite that every `Journal` is held to, whatever it keeps its answers in."""

from __future__ import annotations

import pytest

from ps_service.state.journal import Answer, Journal, MemoryJournal
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


class JournalSuite:
    """What a journal owes. To hold another one to it, subclass this and override `make`."""

    __test__ = False

    def make(self) -> Journal:
        """A new, empty journal."""
        raise NotImplementedError

    @pytest.fixture
    def journal(self) -> Journal:
        return self.make()

    def kept(self, journal: Journal, trainer: bytes) -> list[int]:
        return [number for number in range(1, 20) if journal.recall(trainer, number) is not None]

    async def test_it_begins_empty(self, journal: Journal) -> None:
        assert len(journal) == 0
        assert journal.recall(ANNA, 1) is None

    async def test_an_answer_comes_back_whole(self, journal: Journal) -> None:
        journal.record(ANNA, 1, answer(7, b"bytes", b" of ", b"a tensor", granted=("id", "id", "other")))
        found = journal.recall(ANNA, 1)
        assert found is not None
        assert found.reply == Reply(step=StepReply(version=7))
        assert b"".join(found.chunks) == b"bytes of a tensor"
        assert found.nbytes == 17
        assert found.granted == ["id", "id", "other"]

    async def test_errors_are_answers_too(self, journal: Journal) -> None:
        journal.record(ANNA, 1, Answer(Frame(reply=Reply(error=to_message(StaleHandleError("gone")))), [], 0, []))
        found = journal.recall(ANNA, 1)
        assert found is not None
        assert found.reply.error.message == "gone"

    async def test_an_answer_may_be_asked_for_again_and_again(self, journal: Journal) -> None:
        journal.record(ANNA, 1, answer(7, b"x"))
        assert [journal.recall(ANNA, 1).reply.step.version for _ in range(3)] == [7, 7, 7]
        assert len(journal) == 1

    async def test_numbers_belong_to_their_trainer(self, journal: Journal) -> None:
        journal.record(ANNA, 1, answer(1))
        journal.record(BERT, 1, answer(2))
        assert journal.recall(ANNA, 1).reply.step.version == 1
        assert journal.recall(BERT, 1).reply.step.version == 2
        assert journal.recall(ANNA, 2) is None
        assert len(journal) == 2

    async def test_what_was_confirmed_is_forgotten(self, journal: Journal) -> None:
        for number in (1, 2, 3):
            journal.record(ANNA, number, answer(number))
            journal.record(BERT, number, answer(number))
        journal.forget(ANNA, [1, 3])
        assert self.kept(journal, ANNA) == [2]
        assert self.kept(journal, BERT) == [1, 2, 3]
        assert len(journal) == 4

    async def test_forgetting_what_is_not_there_does_nothing(self, journal: Journal) -> None:
        journal.record(ANNA, 1, answer(1))
        journal.forget(ANNA, [2, 2, 10**18])
        journal.forget(BERT, [1])
        journal.forget(ANNA, [])
        assert self.kept(journal, ANNA) == [1]

    async def test_a_range_can_be_forgotten(self, journal: Journal) -> None:
        for number in range(1, 6):
            journal.record(ANNA, number, answer(number))
        journal.forget(ANNA, range(1, 4))
        assert self.kept(journal, ANNA) == [4, 5]

    async def test_only_what_a_trainer_lacks_is_kept(self, journal: Journal) -> None:
        for number in (1, 2, 3, 4):
            journal.record(ANNA, number, answer(number))
            journal.record(BERT, number, answer(number))
        journal.keep_only(ANNA, iter([2, 4, 9]))
        assert self.kept(journal, ANNA) == [2, 4]
        assert self.kept(journal, BERT) == [1, 2, 3, 4]

    async def test_keeping_nothing_leaves_nothing(self, journal: Journal) -> None:
        journal.record(ANNA, 1, answer(1))
        journal.keep_only(ANNA, [])
        journal.keep_only(BERT, [1])
        assert len(journal) == 0

    async def test_answers_go_on_after_keeping_some(self, journal: Journal) -> None:
        journal.record(ANNA, 1, answer(1))
        journal.keep_only(ANNA, [])
        journal.record(ANNA, 2, answer(2))
        assert self.kept(journal, ANNA) == [2]

    async def test_a_trainer_that_is_gone_leaves_nothing(self, journal: Journal) -> None:
        journal.record(ANNA, 1, answer(1))
        journal.record(BERT, 1, answer(2))
        journal.drop(ANNA)
        journal.drop(ANNA)
        assert self.kept(journal, ANNA) == []
        assert self.kept(journal, BERT) == [1]
        assert len(journal) == 1

    async def test_answers_that_are_recorded_together_are_all_kept(self, journal: Journal) -> None:
        for number in range(1, 20):
            journal.record(ANNA, number, answer(number))
        await journal.flushed()
        assert self.kept(journal, ANNA) == list(range(1, 20))
        assert [journal.recall(ANNA, number).reply.step.version for number in range(1, 20)] == list(range(1, 20))


class TestMemoryJournal(JournalSuite):
    """The journal that lives as long as the process."""

    __test__ = True

    def make(self) -> Journal:
        return MemoryJournal()

    async def test_trainers_that_come_and_go_leave_nothing(self) -> None:
        journal = MemoryJournal()
        for number in range(100):
            trainer = number.to_bytes(16)
            journal.keep_only(trainer, [])
            journal.record(trainer, 1, answer(1))
            journal.forget(trainer, [1])
            journal.drop(trainer)
        assert not journal._answers


def test_the_bytes_of_what_is_kept_are_known() -> None:
    journal = MemoryJournal()
    frame = Frame()
    journal.record(b"t", 1, Answer(frame, [], 100, []))
    journal.record(b"t", 2, Answer(frame, [], 20, []))
    journal.record(b"t", 2, Answer(frame, [], 30, []))
    journal.record(b"o", 1, Answer(frame, [], 4, []))
    assert (journal.nbytes_of(b"t"), journal.nbytes_of(b"o"), journal.nbytes) == (130, 4, 134)
    journal.keep_only(b"t", [1])
    assert (journal.nbytes_of(b"t"), journal.nbytes) == (100, 104)
    journal.forget(b"t", [1, 1])
    journal.drop(b"o")
    assert (journal.nbytes_of(b"t"), journal.nbytes_of(b"o"), journal.nbytes) == (0, 0, 0)
