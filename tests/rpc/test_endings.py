"""Tests members that leave, are killed or stopped, or have not joined, with several real processes."""

from __future__ import annotations

import re

import pytest

from tests.forking.process import Forking
from tests.rpc.in_turn import Run, runner

LOST = "UnavailableError shutdown: worker1 was lost: its connection broke, and it did not come back"


ALONE = ("never_there", "calls_one_that_never_joins", "calls_in_a_fork")
IN_TWOS = ("calls_before_the_other_joins", "calls_one_that_has_left", "joins_again", "another_number")
IN_THREES = ("others_leave", "keeper_leaves", "replaced", "given_up")


@pytest.fixture(scope="module")
def run(forking: Forking) -> Run:
    return runner(forking, "tests.rpc.endings", (1, ALONE), (2, IN_TWOS), (3, IN_THREES))


def test_a_member_that_was_killed_is_noticed_in_shutdown(run: Run) -> None:
    assert run("killed_before_shutdown", 3) == [f"0 {LOST}", f"2 {LOST}"]


def test_a_member_that_is_killed_in_shutdown_is_noticed(run: Run) -> None:
    # It had arrived, for as long as its session lived.
    assert [line.replace(" for good", "") for line in run("killed_in_shutdown", 3)] == [f"0 {LOST}", f"2 {LOST}"]


def test_the_member_with_the_directory_is_killed_in_shutdown(run: Run) -> None:
    first, second = run("keeper_killed_in_shutdown", 2)
    assert re.search(r"1 'worker1' has called shutdown, and waits for the directory at 127", first), first
    error = r"1 DeadlineExceededError shutdown: the directory at .* did not answer within 1\.5 s"
    assert re.search(error, second), second


def test_a_stopped_member_is_waited_for_and_named(run: Run) -> None:
    assert run("stopped", 2) == ["0 'worker0' has called shutdown, and waits for worker1", "0 left", "1 left"]


def test_members_that_have_left_are_not_waited_for(run: Run) -> None:
    assert run("others_leave", 3) == ["0 left", "1 left at once", "2 left at once"]


def test_the_directory_leaves_while_others_wait(run: Run) -> None:
    gone = "UnavailableError shutdown: worker0, which kept the directory, has left the group"
    assert run("keeper_leaves", 3) == ["0 left at once", f"1 {gone}", f"2 {gone}"]


def test_a_member_that_has_joined_again_meets_the_others(run: Run) -> None:
    assert run("joins_again", 2) == [f"{rank} [('again', 1), ('worker0', 0)]" for rank in (0, 1)]


def test_the_number_of_a_member_that_has_left_is_not_kept(run: Run) -> None:
    before, after = ("WorkerInfo(name='again', id=1)", "WorkerInfo(name='again', id=7)")
    gone = "unknown member 'again': the group has no member 'again'; its members are: worker0"
    assert run("another_number", 2) == sorted(
        [
            f"0 tensor(3) {before} {before}",
            *2 * [f"0 could not find destination: {gone}"],
            f"0 {after} {after}",
        ]
    )


def test_a_process_that_another_has_replaced_is_no_member_any_more(run: Run) -> None:
    refused = "NameConflictError all_gather: another process is 'twice' now"
    assert run("replaced", 3) == [
        "0 1 4",
        "0 7 StaleHandleError owner 'twice' has restarted",
        "0 [('twice', 2), ('worker0', 0)]",
        f"1 {refused} {refused}",
        "1 left",
        "2 [('twice', 2), ('worker0', 0)]",
    ]


def test_errors_after_a_loss_say_what_a_member_can_do(run: Run) -> None:
    assert run("told_of_the_lost", 3) == [
        "0 True",
        "0 What this process had there is gone, with all references to it: make it again, as with rpc.remote(…), and "
        "repeat the pass in a new context",
        "0 shutdown: calls of this process are not answered in time by twice",
    ]


def test_a_member_that_was_given_up_comes_back_to_a_group_that_began_as_a_whole(run: Run) -> None:
    assert run("given_up", 3) == [f"{rank} {said}" for rank in range(3) for said in ("left", f"tensor({rank + 1})")]


def test_a_member_that_never_joins_is_not_waited_for_without_end(run: Run) -> None:
    assert run("never_there", 1) == ["0 DeadlineExceededError shutdown: trainer1 did not come within 1 s"]


def test_a_call_waits_for_a_member_that_has_not_joined(run: Run) -> None:
    assert run("calls_before_the_other_joins", 2) == [
        "0 'worker0' calls 'late', which is not in the directory",
        "0 tensor(3)",
    ]


def test_a_call_does_not_wait_for_a_member_without_end(run: Run) -> None:
    lines = run("calls_one_that_never_joins", 1)
    assert lines == 3 * [
        "0 could not find destination: unknown member 'late': the group has no member 'late'; its members are: worker0"
    ]


def test_a_call_in_a_fork_says_that_it_is_one(run: Run) -> None:
    (line,) = run("calls_in_a_fork", 1)
    assert line.startswith("0 ClosedError this client was opened by process"), line


def test_a_call_of_a_member_that_has_left_fails_where_it_is_waited_for(run: Run) -> None:
    assert run("calls_one_that_has_left", 2) == 2 * ["0 UnknownNameError"]
