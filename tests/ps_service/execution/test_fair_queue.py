"""Tests the fair queue: the trainer with the least thread time is next, and idle trainers save up no credit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from ps_service.execution.fair_queue import FairQueue, Work, WorkItem


def _nothing() -> None: ...


def function() -> Work:
    return _nothing


def named(name: str) -> Callable[[], str]:
    return lambda: name


def add(turns: FairQueue, *names: str, urgent: bool = False) -> None:
    """Pieces, each of the trainer whose letter its name begins with."""
    for name in names:
        turns.add(WorkItem(name[:1].encode(), urgent, named(name)), function)


def take(turns: FairQueue, seconds: float | None = 0.0) -> str:
    item, _ = turns.take()
    if seconds is not None:
        turns.ended(item, seconds)
    return item.what()


def test_one_trainer_is_served_in_order() -> None:
    turns = FairQueue()
    add(turns, "a1", "a2", "a3")
    assert len(turns) == 3
    assert [take(turns, 1.0) for _ in range(3)] == ["a1", "a2", "a3"]
    assert not turns


def test_a_single_piece_passes_a_thousand_of_another_trainer() -> None:
    turns = FairQueue()
    add(turns, *(f"a{i}" for i in range(1000)))
    for _ in range(10):
        take(turns, 0.02)
    add(turns, "b")
    assert "b" in [take(turns, 0.02) for _ in range(2)]


def test_trainers_whose_pieces_take_as_long_take_turns() -> None:
    turns = FairQueue()
    add(turns, "a1", "a2", "a3", "b1", "b2", "b3", "c1", "c2", "c3")
    took = [take(turns, 1.0)[0] for _ in range(9)]
    assert [sorted(took[i : i + 3]) for i in (0, 3, 6)] == [["a", "b", "c"]] * 3


def test_time_is_shared_and_not_the_number_of_pieces() -> None:
    turns = FairQueue()
    add(turns, *["a"] * 300, *["b"] * 300)
    used: Counter[str] = Counter()
    for _ in range(200):
        item, _ = turns.take()
        seconds = {"a": 0.1, "b": 0.001}[item.what()]
        turns.ended(item, seconds)
        used[item.what()] += round(seconds * 1000)
    assert abs(used["a"] - used["b"]) <= 200, "milliseconds"


def test_running_work_counts_with_its_estimate() -> None:
    turns = FairQueue()
    add(turns, "a", "b")
    take(turns, 1.0), take(turns, 1.0)
    add(turns, "a", "a", "a", "b", "b", "b")
    running = [take(turns, None) for _ in range(4)]
    assert Counter(running) == {"a": 2, "b": 2}


def test_a_trainer_that_asked_for_nothing_has_saved_nothing_up() -> None:
    turns = FairQueue()
    add(turns, *["a"] * 100, "b")
    for _ in range(51):
        take(turns, 1.0)
    add(turns, *["b"] * 100)
    took = Counter(take(turns, 1.0) for _ in range(20))
    assert abs(took["a"] - took["b"]) <= 2


def test_a_trainer_that_is_ahead_is_not_forgiven_by_having_nothing_queued() -> None:
    turns = FairQueue()
    add(turns, "a", *["b"] * 50)
    assert take(turns, 10.0) == "a"
    take(turns, 0.1)
    add(turns, "a")
    took = [take(turns, 0.1) for _ in range(40)]
    assert "a" not in took, "it has used ten seconds, and the other four"


def test_urgent_work_goes_before_other_work_of_its_trainer() -> None:
    turns = FairQueue()
    add(turns, "a1", "a2", "b1")
    add(turns, "a3", urgent=True)
    took = [take(turns, 1.0) for _ in range(4)]
    assert [name for name in took if name[0] == "a"] == ["a3", "a1", "a2"]
    assert "b1" in took[:2], "but not before those of others"


def test_trainers_that_are_gone_are_forgotten() -> None:
    turns = FairQueue()
    for i in range(5000):
        turns.add(WorkItem(str(i).encode()), function)
        take(turns, 0.001)
    assert len(turns._queues) < 1000


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0.001, 1.0)), max_size=60))
def test_every_piece_is_taken_once_and_in_the_order_of_its_trainer(asked: list[tuple[str, bool, float]]) -> None:
    turns = FairQueue()
    took: list[str] = []
    running: list[WorkItem] = []
    for i, (letter, begin, seconds) in enumerate(asked):
        add(turns, f"{letter}{i:03}")
        if begin:
            item, _ = turns.take()
            took.append(item.what())
            running.append(item)
        if running and seconds < 0.5:
            turns.ended(running.pop(), seconds)
    while turns:
        took.append(take(turns, 0.1))
    assert sorted(took) == sorted(f"{letter}{i:03}" for i, (letter, _, _) in enumerate(asked))
    for letter in "abc":
        own = [name for name in took if name[0] == letter]
        assert own == sorted(own)


def test_trainers_of_one_group_share_its_turn() -> None:
    turns = FairQueue()
    for name in ("a1", "b1", "c1", "a2", "b2", "c2", "a3", "a4"):
        turns.add(WorkItem(name[:1].encode(), what=named(name), group="team" if name[0] in "ab" else ""), function)
    assert len(turns) == 8
    took = [take(turns, 1.0) for _ in range(8)]
    assert took[:6] == ["a1", "c1", "b1", "c2", "a2", "b2"], "the group has a turn, and the other trainer has the next"
    assert took[6:] == ["a3", "a4"]
    assert not turns


def test_a_group_saves_up_no_credit_and_its_trainers_do_not() -> None:
    turns = FairQueue()
    add(turns, *(f"c{number}" for number in range(20)))
    for _ in range(5):
        take(turns, 1.0)
    for name in ("a1", "a2", "a3", "b1"):
        turns.add(WorkItem(name[:1].encode(), what=named(name), group="team"), function)
    assert "c" in [take(turns, 1.0)[0] for _ in range(4)]
