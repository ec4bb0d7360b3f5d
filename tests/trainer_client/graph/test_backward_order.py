"""Tests that backwards of a context run in the requested order, and know the order of their calls."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from ps_wire.errors import CancelledCallError
from trainer_client.contexts.backwards import Queue
from trainer_client.graph.running_backward import RunningBackward

PATIENCE = 60.0


def call(owner: str, number: int) -> Any:
    return SimpleNamespace(session=SimpleNamespace(owner=owner), number=number)


def test_each_call_comes_after_the_next_later_one_of_its_owner() -> None:
    calls = [call("ps0", 1), call("ps1", 2), call("ps0", 5), call("ps1", 3), call("ps0", 4)]
    current = RunningBackward(False, 1, calls)
    assert {number: current.after(number) for number in range(1, 7)} == {1: 4, 2: 3, 3: 0, 4: 5, 5: 0, 6: None}


def test_calls_that_were_skipped_are_not_waited_for() -> None:
    current = RunningBackward(False, 1, [call("ps0", number) for number in range(1, 6)])
    for number in (4, 3):
        current.add(call("ps0", number), (), (), kept=False)
    assert [current.after(number) for number in (1, 2, 5)] == [2, 5, 0]
    current.add(call("ps0", 5), (), (), kept=False)
    assert current.after(2) == 0


def test_nothing_is_known_of_calls_elsewhere() -> None:
    assert RunningBackward(False, 1).after(1) is None


def test_turns_come_in_the_order_of_the_numbers() -> None:
    queue, ran = Queue(), []
    numbers = [queue.join() for _ in range(4)]

    def run(number: int) -> None:
        with queue.turn(number):
            ran.append(number)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in (4, 3, 1)]
    for thread in threads:
        thread.start()
    queue.withdraw(2)
    for thread in threads:
        thread.join(PATIENCE)
    assert numbers == [1, 2, 3, 4]
    assert ran == [1, 3, 4]


def test_a_number_that_was_given_back_has_no_turn() -> None:
    queue = Queue()
    first, second = queue.join(), queue.join()
    queue.withdraw(first)
    with pytest.raises(CancelledCallError), queue.turn(first):
        pass
    with queue.turn(second):
        queue.withdraw(first)


def test_a_turn_that_has_begun_is_not_given_back() -> None:
    queue, ran = Queue(), []
    first, second = queue.join(), queue.join()
    begun, go = threading.Event(), threading.Event()

    def run() -> None:
        with queue.turn(first):
            begun.set()
            assert go.wait(PATIENCE)
            ran.append(first)

    def follow() -> None:
        with queue.turn(second):
            ran.append(second)

    threads = [threading.Thread(target=each, daemon=True) for each in (run, follow)]
    for thread in threads:
        thread.start()
    assert begun.wait(PATIENCE)
    queue.withdraw(first)
    go.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert ran == [1, 2]
