"""Tests how a group begins as a whole: for all of its members at once, or for none."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from ps_service.group.directory import Directory
from ps_service.group.formation import MemberEntry, Progress
from ps_wire.errors import DrainingError, InvalidArgumentError, NameConflictError, UnavailableError


class Group:
    """A directory, and members that arrive there. The session of each is its label, of sixteen bytes."""

    def __init__(self, size: int) -> None:
        self.away: set[bytes] = set()
        self.directory = Directory(self.away.__contains__)
        self.directory.begin(size)

    def arrive(self, label: str, name: str, rank: int, size: int = 3) -> Future[Progress]:
        return self.directory.arrive(self.session(label), name, f"{label}:1", rank, size).future

    def missing(self, label: str, name: str, rank: int) -> list[str]:
        wait = self.directory.arrive(self.session(label), name, f"{label}:1", rank, 3)
        wait.expire()
        found: Progress = wait.future.result()
        return found.missing

    def leave(self, label: str) -> None:
        self.directory.leave(self.session(label))
        self.away.add(self.session(label))

    def told(self) -> Future[Any]:
        return self.directory.told(self.session("a")).future

    @staticmethod
    def session(label: str) -> bytes:
        return label.encode().ljust(16)


@pytest.fixture
def group() -> Group:
    return Group(3)


def test_all_members_enter_at_once(group: Group) -> None:
    first, second = group.arrive("a", "anna", 0), group.arrive("b", "bert", 1)
    assert not first.done() and len(group.directory) == 0
    third = group.arrive("c", "carl", 2)
    for each in (first, second, third):
        assert [entry.name for entry in each.result(0).members] == ["anna", "bert", "carl"]
        assert each.result(0).missing == []
    assert [entry.name for entry in group.directory.members()] == ["anna", "bert", "carl"]


def test_who_waits_learns_who_is_missing(group: Group) -> None:
    assert group.missing("b", "bert", 1) == ["rank 0", "rank 2"]
    group.away.add(group.session("b"))
    assert group.missing("a", "anna", 0) == ["rank 2", "'bert' (rank 1), whose connection is broken"]
    assert not group.arrive("c", "carl", 2).done()
    # It is whole once all are there at the same time.
    group.away.clear()
    assert group.arrive("a", "anna", 0).done()


def test_a_member_may_be_restarted_while_the_group_is_forming(group: Group) -> None:
    group.arrive("b", "bert", 1)
    group.away.add(group.session("b"))
    group.arrive("b again", "bert", 1)
    group.arrive("a", "anna", 0)
    members = group.arrive("c", "carl", 2).result(0).members
    assert [entry.address for entry in members] == ["a:1", "b again:1", "c:1"]


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (("c", "anna", 2, 3), "the name 'anna' is not unique: ranks 0 and 2 have it"),
        (("c", "carl", 1, 3), "rank 1 is not unique: 'bert' and 'carl' have it"),
        (("c", "carl", 2, 4), r"was given as 3 to 'anna' \(rank 0\), 'bert' \(rank 1\); 4 to 'carl' \(rank 2\)"),
    ],
)
def test_all_members_learn_that_they_do_not_agree(group: Group, last: tuple[str, str, int, int], why: str) -> None:
    waiting = [group.arrive("a", "anna", 0), group.arrive("b", "bert", 1), group.arrive(*last)]
    for each in (*waiting, group.arrive("late", "dora", 3, 4)):
        with pytest.raises((NameConflictError, InvalidArgumentError), match=why):
            each.result(0)
    assert len(group.directory) == 0


def test_a_member_with_a_smaller_world_size_is_noticed_before_all_are_there(group: Group) -> None:
    first, second = group.arrive("a", "anna", 0), group.arrive("b", "bert", 1, 2)
    for each in (first, second):
        with pytest.raises(InvalidArgumentError, match="the same world_size"):
            each.result(0)


def test_the_member_with_the_directory_gives_up_for_all(group: Group) -> None:
    waiting = group.arrive("b", "bert", 1)
    group.directory.give_up("anna has left")
    with pytest.raises(UnavailableError, match="the group has not come together: anna has left"):
        waiting.result(0)


def test_who_has_come_and_gone_is_missing(group: Group) -> None:
    group.arrive("b", "bert", 1)
    group.arrive("a", "anna", 0)
    group.leave("b")
    assert not group.arrive("c", "carl", 2).done()
    assert group.missing("a", "anna", 0) == ["rank 1"]


def test_only_its_members_come_back_to_a_whole_group(group: Group) -> None:
    for label, name, rank in (("a", "anna", 0), ("b", "bert", 1), ("c", "carl", 2)):
        group.arrive(label, name, rank)
    with pytest.raises(NameConflictError, match=r"of 'bert' \(rank 1\) is not unique: this group is complete"):
        group.arrive("d", "bert", 1)
    with pytest.raises(NameConflictError, match="this group is complete"):
        group.arrive("d", "dora", 2)
    with pytest.raises(InvalidArgumentError, match=r"this group has 3 members, and 'dora'.* was given world_size=4"):
        group.arrive("d", "dora", 3, 4)
    group.leave("b")
    assert group.arrive("b again", "bert", 1).done()
    assert group.directory.find("bert", None) == MemberEntry("bert", "b again:1", 1, group.session("b again"))


def test_a_member_that_was_lost_comes_back_in_the_same_session(group: Group) -> None:
    for label, name, rank in (("a", "anna", 0), ("b", "bert", 1), ("c", "carl", 2)):
        group.arrive(label, name, rank)
    group.directory.leave(group.session("b"), lost=True)
    assert group.directory.find("bert") is None
    for _ in range(2):
        assert group.arrive("b", "bert", 1).done()
        assert group.directory.find("bert") == MemberEntry("bert", "b:1", 1, group.session("b"))
    both = ("anna", "bert")
    waiting = group.directory.rendezvous(group.session("a"), "start", "anna", both, 1).future
    group.directory.rendezvous(group.session("b"), "start", "bert", both, 2)
    assert waiting.result(0).values == {"anna": 1, "bert": 2}


def test_one_that_was_lost_does_not_come_back_once_another_has_its_place(group: Group) -> None:
    for label, name, rank in (("a", "anna", 0), ("b", "bert", 1), ("c", "carl", 2)):
        group.arrive(label, name, rank)
    group.leave("b")
    group.arrive("b again", "bert", 1)
    with pytest.raises(NameConflictError, match="this group is complete"):
        group.arrive("b", "bert", 1)
    assert group.directory.find("bert") == MemberEntry("bert", "b again:1", 1, group.session("b again"))


def test_nobody_comes_back_to_a_group_whose_members_have_met_to_leave_it(group: Group) -> None:
    """It may be meant for the next group at the same address."""
    names = ("anna", "bert", "carl")
    for label, name, rank in zip("abc", names, range(3), strict=True):
        group.arrive(label, name, rank)
    waits = [group.directory.rendezvous(group.session(each), "end", name, names, None, leaving=True).future
             for each, name in zip("abc", names, strict=True)]  # fmt: skip
    assert all(each.done() for each in waits)
    assert group.arrive("c", "carl", 2).done(), "it knows that it is in the group"
    group.leave("b")
    for label in ("b", "b again"):
        with pytest.raises(DrainingError, match=r"met to leave it, and 'bert' \(rank 1\) comes too late"):
            group.arrive(label, "bert", 1)


def test_it_is_known_when_all_members_know_that_the_group_is_whole(group: Group) -> None:
    for label, name, rank in (("a", "anna", 0), ("b", "bert", 1), ("c", "carl", 2)):
        group.arrive(label, name, rank)
    told = group.told()
    group.arrive("b", "bert", 1)
    assert not told.done()
    group.leave("c")
    assert told.done()


def test_it_is_known_when_all_members_know_that_the_group_has_failed(group: Group) -> None:
    group.arrive("a", "anna", 0)
    group.arrive("b", "bert", 1)
    group.directory.give_up("anna has left")
    told = group.told()
    group.leave("b")
    assert not told.done()
    group.arrive("c", "carl", 2)
    group.leave("c")
    assert told.done()


def test_open_groups_and_groups_that_begin_as_a_whole_do_not_mix(group: Group) -> None:
    mixed = "mixes statically and dynamically initialized members which is not supported"
    with pytest.raises(InvalidArgumentError, match=f"{mixed}.*'dora' did not"):
        group.directory.enter(b"d" * 16, "dora", "d:1")
    with pytest.raises(InvalidArgumentError, match=f"{mixed}.*This group is open"):
        Directory().arrive(b"d" * 16, "dora", "d:1", 0, 3)
