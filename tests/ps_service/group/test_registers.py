"""Tests what a keeper of the directory answers to each claim, and what an owner makes of the answers."""

from __future__ import annotations

import pytest

from ps_service.group import claim_messages
from ps_service.group.lease import Lease
from ps_service.group.lineage import Lineage
from ps_service.group.merged import MergedEntries
from ps_service.group.registers import (
    CHECK_SECONDS,
    HOLD_SECONDS,
    LEASE_SECONDS,
    LISTED_SECONDS,
    WAIT_SECONDS,
    Answer,
    Claim,
    Entry,
    Outcome,
    Registers,
)
from ps_wire.errors import InvalidArgumentError, NameConflictError, ReplacedError
from ps_wire.v1 import directory_pb2 as pb

KEEPERS = ("a", "b", "c")
FIRST = Entry("ps3", "here:1", 3, lineage=Lineage("first"))
LATER = Entry("ps3", "there:1", 3, 2, Lineage("later", ("first",)))
OTHER = Entry("ps3", "elsewhere:1", 3, 2, Lineage("other"))


def claim(entry: Entry, keepers: tuple[str, ...] = KEEPERS, leaves: bool = False) -> Claim:
    return Claim(entry, keepers, leaves)


@pytest.fixture
def keeper() -> Registers:
    """A keeper that began long ago, at a time of 0, and holds the name of `FIRST` since 100."""
    registers = Registers("a", KEEPERS, 0.0)
    assert registers.answer(claim(FIRST), 100.0) == Answer("a", Outcome.GRANTED, FIRST)
    return registers


def test_a_keeper_that_has_started_grants_nothing_at_first() -> None:
    registers = Registers("a", KEEPERS, 50.0)
    assert registers.answer(claim(FIRST), 50.0 + WAIT_SECONDS - 0.1).outcome is Outcome.NOT_READY
    assert registers.answer(claim(FIRST), 50.0 + WAIT_SECONDS).outcome is Outcome.GRANTED


def test_a_keeper_grants_nothing_unless_it_knows_that_it_has_its_directory() -> None:
    registers = Registers("a", KEEPERS, 0.0, has_directory=True)
    assert registers.answer(claim(FIRST), 100.0).outcome is Outcome.NOT_READY
    registers.confirm(100.0)
    assert registers.answer(claim(FIRST), 100.0 + CHECK_SECONDS).outcome is Outcome.GRANTED
    assert registers.answer(claim(FIRST), 100.1 + CHECK_SECONDS).outcome is Outcome.NOT_READY


def test_a_name_is_held_until_its_time_is_over(keeper: Registers) -> None:
    assert keeper.answer(claim(OTHER), 100.0 + HOLD_SECONDS - 0.1) == Answer("a", Outcome.HELD, FIRST)
    assert keeper.answer(claim(FIRST), 102.0).outcome is Outcome.GRANTED
    assert keeper.answer(claim(OTHER), 100.0 + HOLD_SECONDS).outcome is Outcome.HELD
    assert keeper.answer(claim(OTHER), 102.0 + HOLD_SECONDS).outcome is Outcome.GRANTED
    assert keeper.answer(claim(FIRST._replace(epoch=9)), 103.0 + HOLD_SECONDS) == Answer("a", Outcome.HELD, OTHER)


def test_a_later_start_waits_for_the_one_before_which_is_told(keeper: Registers) -> None:
    assert keeper.answer(claim(LATER), 101.0).outcome is Outcome.HELD
    assert keeper.answer(claim(FIRST), 101.1) == Answer("a", Outcome.REPLACED, LATER)
    assert keeper.answer(claim(FIRST, leaves=True), 101.2).outcome is Outcome.GRANTED
    assert keeper.answer(claim(LATER), 101.3).outcome is Outcome.GRANTED
    assert keeper.answer(claim(FIRST._replace(epoch=9)), 999.0) == Answer(
        "a", Outcome.REPLACED, LATER._replace(gone=True)
    )


def test_the_epoch_of_a_later_owner_is_higher(keeper: Registers) -> None:
    stale = keeper.answer(claim(OTHER._replace(epoch=1)), 200.0)
    assert (stale.outcome, stale.entry) == (Outcome.STALE, FIRST._replace(gone=True))
    assert keeper.answer(claim(OTHER), 200.0).outcome is Outcome.GRANTED


def test_who_leaves_frees_the_name_unless_it_has_claimed_it_since(keeper: Registers) -> None:
    assert keeper.answer(claim(FIRST._replace(epoch=2)), 101.0).outcome is Outcome.GRANTED
    keeper.answer(claim(FIRST, leaves=True), 101.0)
    keeper.answer(claim(OTHER._replace(epoch=3), leaves=True), 101.0)
    assert keeper.answer(claim(OTHER._replace(epoch=3)), 101.0).outcome is Outcome.HELD
    keeper.answer(claim(FIRST._replace(epoch=2), leaves=True), 101.0)
    assert [each.gone for each in keeper.entries(101.0)] == [True]
    assert keeper.answer(claim(OTHER._replace(epoch=3)), 101.0).outcome is Outcome.GRANTED


def test_no_owner_gets_the_number_of_another(keeper: Registers) -> None:
    new = Entry("ps4", "new:1", lineage=Lineage("new"))
    for proposed in (None, 3):
        answer = keeper.answer(claim(new._replace(id=proposed)), 100.0)
        assert (answer.outcome, answer.number) == (Outcome.NUMBER, 4)
    assert keeper.answer(claim(new._replace(id=4)), 100.0).outcome is Outcome.GRANTED
    assert keeper.answer(claim(OTHER._replace(id=None)), 999.0).number == 3, "it gets that of its name again"
    assert Registers("a", KEEPERS, 0.0).answer(claim(new), 9.0).number == 3, "keepers have the first ones"


def test_all_are_told_the_same_keepers(keeper: Registers) -> None:
    for others in (("a", "b"), ("b", "a", "c"), ("a", "b", "d")):
        assert keeper.answer(claim(FIRST, others), 101.0).outcome is Outcome.OTHER_KEEPERS


def test_one_that_is_not_heard_of_is_listed_for_a_while(keeper: Registers) -> None:
    version = keeper.version
    assert keeper.entries(100.0 + LISTED_SECONDS - 0.1) == [FIRST] and keeper.version == version
    assert keeper.entries(100.0 + LISTED_SECONDS) == [FIRST._replace(gone=True)] and keeper.version == version + 1
    keeper.answer(claim(FIRST), 200.0)
    assert keeper.entries(200.0) == [FIRST] and keeper.version == version + 2


# The owner's half


def granted(lease: Lease, keeper: str, sent: float) -> None:
    lease.heard(lease.claim(), sent, Answer(keeper, Outcome.GRANTED, lease.entry))


def refused(lease: Lease, keeper: str, outcome: Outcome, entry: Entry | None = None, sent: float = 1.0) -> None:
    lease.heard(lease.claim(), sent, Answer(keeper, outcome, entry))


def test_a_lease_counts_from_when_a_majority_was_asked() -> None:
    lease = Lease(FIRST, KEEPERS)
    granted(lease, "a", 5.0)
    granted(lease, "nobody", 5.0)
    assert not lease.had and lease.missing(5.0) == {"b": None, "c": None}
    granted(lease, "b", 4.0)
    assert lease.until == 4.0 + LEASE_SECONDS
    granted(lease, "b", 3.0)
    granted(lease, "c", 4.5)
    assert lease.until == 4.5 + LEASE_SECONDS
    refused(lease, "b", Outcome.NOT_READY)
    assert lease.missing(lease.until) == {"b": Outcome.NOT_READY}
    lease.unanswered("b")
    assert lease.missing(99.0) == {"a": None, "b": None, "c": None}


def test_grants_of_an_earlier_epoch_do_not_count_together_with_later_ones() -> None:
    lease = Lease(FIRST, KEEPERS)
    before = lease.claim()
    granted(lease, "a", 1.0)
    refused(lease, "b", Outcome.STALE, OTHER._replace(epoch=6))
    assert lease.entry.epoch == 7
    lease.heard(before, 1.0, Answer("c", Outcome.GRANTED, before.entry))
    granted(lease, "b", 1.0)
    assert not lease.had
    granted(lease, "a", 1.0)
    assert lease.had


def test_a_number_is_not_changed_while_the_owner_acts() -> None:
    lease = Lease(FIRST._replace(id=None), KEEPERS)
    lease.heard(lease.claim(), 1.0, Answer("a", Outcome.NUMBER, None, 5))
    granted(lease, "a", 1.0)
    granted(lease, "b", 1.0)
    lease.heard(lease.claim(), lease.until, Answer("c", Outcome.NUMBER, None, 6))
    assert lease.entry.id == 5
    lease.heard(lease.claim(), lease.until + 0.1, Answer("c", Outcome.NUMBER, None, 6))
    assert lease.entry.id == 6


def test_another_owner_with_the_name_is_a_conflict_once_no_majority_is_left() -> None:
    lease = Lease(FIRST, KEEPERS)
    refused(lease, "a", Outcome.HELD, OTHER)
    assert lease.verdict(1.0) is None
    refused(lease, "b", Outcome.HELD, OTHER)
    assert isinstance(lease.verdict(1.0), NameConflictError)
    # One that it continues, or that was at its address, is waited for.
    later = Lease(LATER, KEEPERS)
    again = Lease(OTHER._replace(address=FIRST.address), KEEPERS)
    for each in KEEPERS:
        refused(later, each, Outcome.HELD, FIRST)
        refused(again, each, Outcome.HELD, FIRST)
    assert later.verdict(1.0) is None and again.verdict(1.0) is None


def test_an_owner_stops_when_a_later_start_or_another_owner_has_its_place() -> None:
    lease = Lease(FIRST, KEEPERS)
    granted(lease, "a", 1.0)
    granted(lease, "b", 1.0)
    for each in KEEPERS:
        refused(lease, each, Outcome.HELD, OTHER)
    assert lease.verdict(lease.until) is None, "it has the name yet"
    assert isinstance(lease.verdict(lease.until + 0.1), ReplacedError)
    for each in KEEPERS:
        refused(lease, each, Outcome.OTHER_KEEPERS)
    assert lease.verdict(99.0) is None
    refused(lease, "a", Outcome.REPLACED, LATER)
    assert isinstance(lease.verdict(1.0), ReplacedError)
    told_others = Lease(FIRST, KEEPERS)
    refused(told_others, "a", Outcome.OTHER_KEEPERS)
    assert isinstance(told_others.verdict(1.0), InvalidArgumentError)


# What keepers tell


def test_the_entry_with_the_highest_epoch_counts() -> None:
    merged = MergedEntries()
    keeper = Entry("ps0", "moved:1", 0, 2, Lineage("moved"), "a")
    merged.hear("a", 0.0, [FIRST, keeper])
    merged.hear("b", 0.0, [OTHER, keeper._replace(epoch=1, address="before:1")])
    assert merged.entries(1.0) == [keeper, OTHER] and merged.addresses == {"a": "moved:1"}
    merged.hear("c", 1.0, [OTHER._replace(gone=True)])
    assert merged.entries(1.0) == [keeper]
    merged.hear("b", 50.0, None)
    assert merged.entries(50.0) == [keeper._replace(epoch=1, address="before:1"), OTHER], "only one was heard of lately"
    assert merged.entries(500.0) == [keeper]
    merged.hear("a", 600.0, [])
    merged.hear("b", 600.0, [keeper._replace(epoch=1, address="before:1")])
    assert merged.addresses == {"a": "moved:1"}, "where a keeper is, is not forgotten"
    merged.hear("b", 601.0, [keeper._replace(epoch=3, address="again:1", gone=True)])
    assert merged.addresses == {"a": "moved:1"}
    merged.hear("b", 602.0, [keeper._replace(epoch=3, address="again:1")])
    assert merged.addresses == {"a": "again:1"}


def test_messages_have_everything() -> None:
    entry = Entry("ps0", "here:1", None, 7, Lineage("one", ("two", "three")), "a", True)
    message = claim_messages.request(Claim(entry, KEEPERS, True), "5")
    assert claim_messages.claim_of(pb.ClaimRequest.FromString(message.SerializeToString())) == Claim(
        entry, KEEPERS, True
    )
    told = entry._replace(id=0, lineage=Lineage("one"))
    answer = Answer("a", Outcome.NUMBER, told, 9)
    reply = pb.ClaimReply.FromString(claim_messages.reply(answer, "6", [told]).SerializeToString())
    assert claim_messages.answer_of(reply) == answer and claim_messages.entries_of(reply) == [told]
    assert claim_messages.answer_of(claim_messages.reply(Answer("a", Outcome.HELD), "", [])).entry is None
    with pytest.raises(ValueError, match="99 is not a valid Outcome"):
        claim_messages.answer_of(pb.ClaimReply(outcome=99))
