"""Tests the directory: which session may enter a member, and which session its entry belongs to."""

from __future__ import annotations

import pytest

from ps_service.group.directory import Directory
from ps_wire.errors import InvalidArgumentError, NameConflictError

ANNA, BERT, AGAIN = b"a" * 16, b"b" * 16, b"c" * 16


@pytest.fixture
def directory() -> Directory:
    """A directory with two members."""
    directory = Directory()
    directory.enter(ANNA, "anna", "here:1")
    directory.enter(BERT, "bert", "there:1")
    return directory


def test_members_have_the_lowest_numbers_that_are_free(directory: Directory) -> None:
    assert [(entry.name, entry.id) for entry in directory.members()] == [("anna", 0), ("bert", 1)]
    directory.leave(ANNA)
    assert directory.enter(AGAIN, "carl", "there:2").id == 0


def test_a_member_may_move_and_keeps_its_number(directory: Directory) -> None:
    assert directory.enter(BERT, "bert", "there:7") == ("bert", "there:7", 1, BERT)
    assert len(directory) == 2


def test_another_process_cannot_take_a_name(directory: Directory) -> None:
    for address, away in (("elsewhere:1", {BERT}), ("there:1", {ANNA})):
        with pytest.raises(NameConflictError, match="the name 'bert' is not unique: the member at there:1 has it"):
            directory.enter(AGAIN, "bert", address, is_away=away.__contains__)
    assert directory.find("bert") == ("bert", "there:1", 1, BERT)


def test_a_restarted_member_gets_its_entry_back_at_once(directory: Directory) -> None:
    away = {BERT}
    assert directory.enter(AGAIN, "bert", "there:1", is_away=away.__contains__) == ("bert", "there:1", 1, AGAIN)
    # The lease of its earlier session runs out later; the entry stays.
    directory.leave(BERT)
    assert directory.find("bert") == ("bert", "there:1", 1, AGAIN)


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
