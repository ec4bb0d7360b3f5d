"""Tests the directory: which session may enter a member, and which session its entry belongs to."""

from __future__ import annotations

import pytest

from ps_service.group.directory import Directory
from ps_service.group.formation import MemberEntry
from ps_service.group.lineage import Lineage
from ps_service.group.rendezvous import SAME, RendezvousResult
from ps_wire.errors import InvalidArgumentError, NameConflictError, ReplacedError, UnavailableError

ANNA, BERT, AGAIN = b"a" * 16, b"b" * 16, b"c" * 16


@pytest.fixture
def away() -> set[bytes]:
    """The sessions that have no connection."""
    return set()


@pytest.fixture
def directory(away: set[bytes]) -> Directory:
    """A directory with two members."""
    directory = Directory(away.__contains__)
    directory.enter(ANNA, "anna", "here:1")
    directory.enter(BERT, "bert", "there:1")
    return directory


def test_members_have_the_lowest_numbers_that_are_free(directory: Directory) -> None:
    assert [(entry.name, entry.id) for entry in directory.members()] == [("anna", 0), ("bert", 1)]
    directory.leave(ANNA)
    assert directory.enter(AGAIN, "carl", "there:2").id == 0


def test_the_number_of_an_owner_stays_its_own(directory: Directory) -> None:
    directory.enter(b"0", "ps0", "here:2", is_owner=True)
    directory.leave(ANNA)
    # Number 0 is free, but owners are in the order in which they came.
    assert directory.enter(b"1", "ps1", "here:3", is_owner=True).id == 3
    directory.leave(b"0")
    assert directory.enter(b"2", "ps2", "here:4", is_owner=True).id == 4
    assert directory.enter(b"3", "carl", "here:5").id == 0
    assert directory.enter(b"4", "dora", "here:6").id == 5
    assert directory.enter(b"5", "ps0", "there:2", is_owner=True).id == 2


def test_a_number_above_which_there_would_be_none_for_owners_is_refused(directory: Directory) -> None:
    for id in (2**31, 2**64 - 1):
        with pytest.raises(InvalidArgumentError, match="at most 2,147,483,647"):
            directory.enter(b"0", "ps0", "here:2", id, is_owner=True)
    assert directory.enter(b"0", "ps0", "here:2", is_owner=True).id == 2


def test_an_owner_whose_number_a_member_has_asked_for_gets_another(directory: Directory) -> None:
    directory.enter(b"0", "ps0", "here:2", is_owner=True)
    directory.leave(b"0")
    directory.enter(b"1", "carl", "here:3", 2)
    assert directory.enter(b"2", "ps0", "here:2", is_owner=True).id == 3


def test_enough_owners_are_waited_for(directory: Directory) -> None:
    wait = directory.gathered(1, owners=1)
    directory.enter(b"3", "carl", "here:2")
    assert not wait.future.done()
    directory.enter(b"0", "ps0", "here:3", is_owner=True)
    assert [entry.name for entry in wait.future.result()] == ["anna", "bert", "carl", "ps0"]


def test_a_member_may_move_and_keeps_its_number(directory: Directory) -> None:
    assert directory.enter(BERT, "bert", "there:7") == MemberEntry("bert", "there:7", 1, BERT)
    assert len(directory) == 2


@pytest.mark.parametrize(("address", "gone"), [("elsewhere:1", BERT), ("there:1", ANNA)])
def test_another_process_cannot_take_a_name(directory: Directory, away: set[bytes], address: str, gone: bytes) -> None:
    away.add(gone)
    with pytest.raises(NameConflictError, match="the name 'bert' is not unique: the member at there:1 has it"):
        directory.enter(AGAIN, "bert", address)
    assert directory.find("bert") == MemberEntry("bert", "there:1", 1, BERT)


def test_a_restarted_member_gets_its_entry_back_at_once(directory: Directory, away: set[bytes]) -> None:
    away.add(BERT)
    assert directory.enter(AGAIN, "bert", "there:1") == MemberEntry("bert", "there:1", 1, AGAIN)
    # The lease of its earlier session runs out later; the entry stays.
    directory.leave(BERT)
    assert directory.find("bert") == MemberEntry("bert", "there:1", 1, AGAIN)


def test_a_number_belongs_to_one_member(directory: Directory) -> None:
    with pytest.raises(NameConflictError, match="number 0 belongs to 'anna'; 'bert' has to choose another"):
        directory.enter(BERT, "bert", "there:1", 0)
    assert directory.enter(BERT, "bert", "there:1", 5).id == 5


@pytest.mark.parametrize(("name", "address"), [("", "here:1"), ("anna", "")])
def test_a_name_and_an_address_are_needed(directory: Directory, name: str, address: str) -> None:
    with pytest.raises(InvalidArgumentError, match="needs a name and an address"):
        directory.enter(ANNA, name, address)


def test_a_member_must_be_among_the_members_of_its_rendezvous(directory: Directory) -> None:
    with pytest.raises(InvalidArgumentError, match="member 'carl' is not among the members of its rendezvous 'start'"):
        directory.rendezvous(AGAIN, "start", "carl", ("anna", "bert"), None)


def test_all_members_of_a_rendezvous_must_give_the_same_names(directory: Directory) -> None:
    directory.rendezvous(ANNA, "start", "anna", ("anna", "bert"), None)
    with pytest.raises(InvalidArgumentError, match="others wait there for anna, bert"):
        directory.rendezvous(BERT, "start", "bert", ("anna", "bert", "carl"), None)


BOTH = ("anna", "bert")


def test_who_waits_at_a_rendezvous_learns_who_is_missing(directory: Directory, away: set[bytes]) -> None:
    def look() -> RendezvousResult:
        wait = directory.rendezvous(ANNA, "start", "anna", (*BOTH, "carl"), SAME, stays=True)
        wait.expire()
        result: RendezvousResult = wait.future.result()
        return result

    directory.rendezvous(ANNA, "start", "anna", (*BOTH, "carl"), 1, stays=True).expire()
    assert look()[:2] == (["bert", "carl (it has not joined)"], ["carl"])
    away.add(BERT)
    assert look()[:2] == (["bert (its connection is broken)", "carl (it has not joined)"], ["carl"])


def test_a_member_that_asks_again_has_arrived_meanwhile(directory: Directory) -> None:
    directory.rendezvous(ANNA, "start", "anna", BOTH, 1, stays=True).expire()
    second = directory.rendezvous(BERT, "start", "bert", BOTH, 2, stays=True).future
    assert second.result(0).values == {"anna": 1, "bert": 2}
    told = directory.told(BERT).future
    assert not told.done()
    assert directory.rendezvous(ANNA, "start", "anna", BOTH, SAME, stays=True).future.result(0) == second.result(0)
    assert told.done()


def test_a_member_whose_value_is_not_known_any_more_is_missing_itself(directory: Directory) -> None:
    wait = directory.rendezvous(ANNA, "start", "anna", BOTH, SAME, stays=True)
    wait.expire()
    assert wait.future.result().missing == ["anna", "bert"]


def test_a_member_that_stays_no_longer_has_to_arrive_again(directory: Directory) -> None:
    directory.rendezvous(ANNA, "start", "anna", BOTH, 1, stays=True).expire()
    directory.rendezvous(ANNA, "start", "anna", BOTH, SAME).expire()
    assert not directory.rendezvous(BERT, "start", "bert", BOTH, 2).future.done()


def test_each_arrival_of_a_member_belongs_to_another_rendezvous_of_a_key(directory: Directory) -> None:
    first = directory.rendezvous(ANNA, "start", "anna", BOTH, 1, stays=True, number=1)
    second = directory.rendezvous(ANNA, "start", "anna", BOTH, 2, stays=True, number=2)
    first.expire()
    again = directory.rendezvous(ANNA, "start", "anna", BOTH, SAME, stays=True, number=1).future
    assert directory.rendezvous(BERT, "start", "bert", BOTH, 3, number=7).future.result(0).values["anna"] == 1
    assert again.done() and not second.future.done()
    assert directory.rendezvous(BERT, "start", "bert", BOTH, 4, number=8).future.result(0).values["anna"] == 2
    assert second.future.result(0).values == {"anna": 2, "bert": 4}


@pytest.mark.parametrize("has_left", [False, True])
def test_a_later_run_of_a_member_arrives_where_others_wait(
    directory: Directory, away: set[bytes], has_left: bool
) -> None:
    three = (*BOTH, "carl")
    directory.rendezvous(BERT, "start", "bert", three, 0, stays=True, number=5)
    waiting = directory.rendezvous(ANNA, "start", "anna", three, 1, stays=True, number=9).future
    away.add(BERT)
    if has_left:
        directory.leave(BERT)
        with pytest.raises(UnavailableError, match="bert has left"):
            waiting.result(0)
    directory.enter(AGAIN, "bert", "there:1")
    if has_left:
        waiting = directory.rendezvous(ANNA, "start", "anna", three, 1, stays=True, number=10).future
    directory.enter(b"d" * 16, "carl", "there:2")
    later = directory.rendezvous(AGAIN, "start", "bert", three, 2, stays=True, number=1).future
    directory.rendezvous(b"d" * 16, "start", "carl", three, 3, number=1)
    directory.leave(BERT)
    assert waiting.result(0) == later.result(0) == ([], [], {"anna": 1, "bert": 2, "carl": 3})
    assert not directory._rendezvous


def test_a_process_that_is_no_member_any_more_does_not_arrive_as_one(directory: Directory) -> None:
    directory.leave(BERT, lost=True)
    directory.enter(AGAIN, "bert", "there:2")
    with pytest.raises(NameConflictError, match="another process is 'bert' now, at there:2"):
        directory.rendezvous(BERT, "start", "bert", BOTH, "old", stays=True)
    waiting = directory.rendezvous(ANNA, "start", "anna", BOTH, "anna's").future
    assert not waiting.done()
    directory.rendezvous(AGAIN, "start", "bert", BOTH, "new")
    assert waiting.result(0).values == {"bert": "new", "anna": "anna's"}


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_an_earlier_process_has_brought_is_not_that_of_a_later_one(
    directory: Directory, away: set[bytes], is_lost: bool
) -> None:
    if is_lost:
        directory.leave(BERT, lost=True)
    earlier = directory.rendezvous(BERT, "start", "bert", BOTH, "old", stays=True)
    away.add(BERT)
    directory.enter(AGAIN, "bert", "there:1")
    waiting = directory.rendezvous(ANNA, "start", "anna", BOTH, "anna's").future
    assert not waiting.done()
    earlier.expire()
    assert earlier.future.result(0).missing == ["anna", "bert"]
    directory.rendezvous(AGAIN, "start", "bert", BOTH, "new")
    assert waiting.result(0).values == {"bert": "new", "anna": "anna's"}
    assert not directory._rendezvous


def test_a_rendezvous_that_was_complete_stays_so_when_a_member_leaves(directory: Directory) -> None:
    directory.rendezvous(ANNA, "start", "anna", BOTH, 1, stays=True, number=1).expire()
    directory.rendezvous(BERT, "start", "bert", BOTH, 2, stays=True, number=1)
    directory.leave(BERT)
    asked = directory.rendezvous(ANNA, "start", "anna", BOTH, SAME, stays=True, number=1).future
    assert asked.result(0).values == {"anna": 1, "bert": 2}


def test_one_whose_wait_failed_is_not_met_by_those_that_come_later(directory: Directory) -> None:
    three = (*BOTH, "carl")
    directory.enter(AGAIN, "carl", "there:2")
    directory.rendezvous(AGAIN, "start", "carl", three, 1, stays=True, number=1).expire()
    failed = directory.rendezvous(ANNA, "start", "anna", three, 1, stays=True, number=1).future
    directory.leave(BERT)
    assert failed.exception(0) is not None
    directory.enter(BERT, "bert", "there:1")
    asked = directory.rendezvous(AGAIN, "start", "carl", three, SAME, stays=True, number=1).future
    directory.rendezvous(BERT, "start", "bert", three, 2, stays=True, number=1)
    assert not asked.done()
    directory.rendezvous(ANNA, "start", "anna", three, 3, stays=True, number=2)
    assert asked.result(0).values == {"carl": 1, "bert": 2, "anna": 3}


@pytest.mark.parametrize(("lost", "why"), [(True, "bert was lost: its connection broke"), (False, "bert has left")])
def test_a_member_that_is_gone_is_not_waited_for(directory: Directory, lost: bool, why: str) -> None:
    waiting = directory.rendezvous(ANNA, "start", "anna", BOTH, 1).future
    directory.leave(BERT, lost)
    late = directory.rendezvous(ANNA, "another", "anna", BOTH, 1).future
    for each in (waiting, late):
        with pytest.raises(UnavailableError, match=why):
            each.result(0)


def test_a_member_of_an_earlier_run_is_waited_for(directory: Directory) -> None:
    directory.leave(BERT)
    directory.leave(ANNA)
    directory.enter(AGAIN, "anna", "here:1")
    assert not directory.rendezvous(AGAIN, "start", "anna", BOTH, 1).future.done()


@pytest.mark.parametrize("lost", [False, True])
def test_members_that_leave_do_not_miss_those_that_have_left(directory: Directory, lost: bool) -> None:
    waiting = directory.rendezvous(ANNA, "end", "anna", BOTH, 1, leaving=True).future
    directory.leave(BERT, lost)
    assert (waiting.exception(0) is not None) == lost


def test_no_rendezvous_goes_on_without_the_directory(directory: Directory) -> None:
    waiting = directory.rendezvous(ANNA, "start", "anna", BOTH, 1).future
    directory.close("bert, which kept the directory, has left the group")
    with pytest.raises(UnavailableError, match="bert, which kept the directory"):
        waiting.result(0)


@pytest.fixture
def first(directory: Directory) -> MemberEntry:
    """An owner with a data directory."""
    return directory.enter(b"1", "ps1", "here:2", is_owner=True, lineage=Lineage("one"))


def test_a_later_start_of_the_same_state_takes_the_place(directory: Directory, first: MemberEntry) -> None:
    told: list[tuple[MemberEntry, MemberEntry]] = []
    directory.when_replaced = lambda *entries: told.append(entries)
    second = directory.enter(b"2", "ps1", "there:2", is_owner=True, lineage=Lineage("three", ("two", "one")))
    assert second == MemberEntry("ps1", "there:2", first.id, b"2", True, Lineage("three", ("two", "one")))
    assert directory.find("ps1") is second and told == [(first, second)]
    directory.leave(b"1")
    assert directory.find("ps1") is second


@pytest.mark.parametrize("lineage", [Lineage(), Lineage("two"), Lineage("two", ("zero",))])
def test_what_continues_another_state_does_not(directory: Directory, first: MemberEntry, lineage: Lineage) -> None:
    with pytest.raises(NameConflictError, match="the name 'ps1' is not unique: the member at here:2 has it"):
        directory.enter(b"2", "ps1", "there:2", is_owner=True, lineage=lineage)
    assert directory.find("ps1") is first


def test_nothing_continues_a_member_without_data(directory: Directory) -> None:
    with pytest.raises(NameConflictError):
        directory.enter(b"2", "bert", "there:2", lineage=Lineage("two", ("",)))


@pytest.mark.parametrize("gone", [False, True])
def test_an_earlier_start_never_comes_back(directory: Directory, first: MemberEntry, gone: bool) -> None:
    directory.enter(b"2", "ps1", "there:2", is_owner=True, lineage=Lineage("two", ("one",)))
    if gone:
        directory.leave(b"2")
    with pytest.raises(ReplacedError, match="a later start of the state of 'ps1' has taken its place, at there:2"):
        directory.enter(b"1", "ps1", "here:2", is_owner=True, lineage=first.lineage)
    # Once its place is free, one that goes on from the older state is another owner.
    if gone:
        again = directory.enter(b"3", "ps1", "here:2", is_owner=True, lineage=Lineage("again", ("one",)))
        assert (again.id, directory.find("ps1")) == (first.id, again)


def test_an_owner_that_moves_again_and_again_keeps_its_number(directory: Directory, first: MemberEntry) -> None:
    earlier = ["one"]
    for start in range(5):
        lineage = Lineage(f"start {start}", tuple(earlier))
        entry = directory.enter(b"%d" % start, "ps1", f"there:{start + 1}", is_owner=True, lineage=lineage)
        assert entry.id == first.id
        earlier.insert(0, lineage.incarnation)
