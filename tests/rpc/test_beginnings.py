"""Tests how groups begin, or fail to, with several real processes; some are killed or stopped in `init_rpc`."""

from __future__ import annotations

import re

import pytest

from tests.forking.process import Forking
from tests.rpc.in_turn import Run, runner

IN_THREES = ("same_rank 0", "same_rank 1", "same_rank_at_once", "other_size 0", "other_size 2")


@pytest.fixture(scope="module")
def run(forking: Forking) -> Run:
    return runner(forking, "tests.rpc.beginnings", (3, IN_THREES))


def all_say(lines: list[str], count: int, what: str) -> None:
    """Every member has said this."""
    assert [line.partition(" ")[0] for line in lines] == [str(rank) for rank in range(count)]
    for line in lines:
        assert re.search(what, line), line


def test_members_may_leave_as_soon_as_the_group_is_whole(run: Run) -> None:
    assert run("leave_at_once", 4) == [f"{rank} left" for rank in range(4) for _ in range(3)]


def test_duplicate_name_2(run: Run) -> None:
    all_say(run("same_name", 4), 4, "NameConflictError the name 'worker0' is not unique: ranks 0 and 3 have it")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_two_members_with_the_same_rank(run: Run, rank: str) -> None:
    lines = run("same_rank", 3, rank)
    assert len(lines) == 3
    for line in lines:
        assert f"NameConflictError rank {rank} is not unique: 'worker{rank}' and 'worker2' have it" in line


def test_a_second_rank_0_that_finds_its_address_taken_late(run: Run) -> None:
    lines = run("same_rank_at_once", 3)
    assert len(lines) == 3
    for line in lines:
        assert "NameConflictError rank 0 is not unique: 'worker0' and 'worker2' have it" in line


@pytest.mark.parametrize("wrong", ["0", "2"])
def test_one_member_with_another_world_size(run: Run, wrong: str) -> None:
    all_say(run("other_size", 3, wrong), 3, "InvalidArgumentError all members of a group need the same world_size")


def test_dynamic_and_static_init_rpc_together(run: Run) -> None:
    (line,) = run("open_and_whole", 4)
    assert "RPC group mixes statically and dynamically initialized members which is not supported." in line


def test_a_member_that_does_not_come_is_named_in_the_log_and_in_the_error(run: Run) -> None:
    all_there = "there are: worker0 (0), worker1 (1)"
    error = "2 of 3 members came within 20 s: worker0 (0), worker1 (1); missing: rank 2"
    assert run("one_too_few", 2) == [
        "0 'worker0' joins its group, and waits for rank 1, rank 2 (there are: worker0 (0))",
        f"0 DeadlineExceededError {error}",
        f"1 'worker1' joins its group, and waits for rank 2 ({all_there})",
        f"1 UnavailableError the group has not come together: 'worker0', which keeps the directory, has left: {error}",
    ]


def test_a_member_that_is_killed_in_init_rpc_is_missing(run: Run) -> None:
    lines = run("killed", 3, "no")
    assert [line[0] for line in lines] == ["0", "2"]
    for line in lines:
        assert re.search(r"missing: .*(rank 1\b|'worker1' \(rank 1\), whose connection is broken)", line), line


def test_a_member_that_is_killed_in_init_rpc_may_come_back(run: Run) -> None:
    assert run("killed", 3, "yes") == ["0 left", "1 left", "2 left"]


def test_the_member_with_the_directory_is_killed_in_init_rpc(run: Run) -> None:
    (line,) = run("keeper_killed", 3)
    assert line.startswith("1 DeadlineExceededError 'worker1' could not join its group within 2 s"), line


def test_a_member_that_is_stopped_in_init_rpc_begins_once_it_goes_on(run: Run) -> None:
    assert run("stopped", 3) == ["0 left", "1 has begun", "2 left"]


def test_groups_begin_at_the_address_of_the_process_group(run: Run) -> None:
    for_each = [f"{rank} {line}" for rank in range(3) for line in 2 * ["3 [2.0, 2.0]", "3.0"]]
    assert run("beside_process_group", 3) == sorted(for_each)


def test_rank_0_of_the_process_group_does_not_join(run: Run) -> None:
    assert run("beside_without_keeper", 2)[0].startswith(
        "1 UnavailableError rank 0 did not tell within 0.2 s where it listens, through the store at 127.0.0.1:"
    )


def test_a_group_may_begin_through_a_file(run: Run) -> None:
    lines = run("through_a_file", 3)
    assert lines == sorted(f"{rank} {what}" for rank in range(3) for what in ([1.0, 1.0], [2.0, 2.0], False))


def test_a_group_that_begins_through_a_file_needs_rank_0(run: Run) -> None:
    (line,) = run("through_a_file_without_keeper", 1)
    assert re.search(r"0 UnavailableError in .*nothing\.rpc stood no directory of a group within 0\.2 s", line)


def test_the_first_of_an_open_group_keeps_the_directory_that_a_file_names(run: Run) -> None:
    assert run("by_file_open", 3) == ["0 left", "0 left again", "1 left", "2 left"]


def test_a_member_that_comes_when_the_first_of_an_open_group_stops_begins_a_new_one(run: Run) -> None:
    assert run("by_file_leaving", 2) == ["0 left", "1 left"]


def test_an_open_group_whose_directory_was_killed_does_not_become_two(run: Run) -> None:
    assert run("by_file_killed", 3) == [
        "1 tensor(3)",
        "2 UnavailableError the member that kept the directory of this open group",
    ]
