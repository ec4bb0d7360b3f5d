"""Tests of what attempts of a pass know of each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ps_wire.attempts import Applied, Attempt

STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=6)


@given(STEPS, st.lists(st.integers(0, 6), max_size=4))
def test_each_step_is_applied_in_one_attempt(steps: list[tuple[str, bool]], ends: list[int]) -> None:
    applied: Applied = {}
    counts = [0] * len(steps)
    for end in [*ends, len(steps)]:
        attempt = Attempt(applied)
        for number, (optimizer, has_gradients) in enumerate(steps[:end]):
            again = attempt.was_applied(optimizer)
            assert again == (counts[number] > 0)
            counts[number] += has_gradients and not again
            attempt.passed(optimizer, has_gradients and not again, version=end * 10 + number)
            assert attempt.was_left_out(optimizer) == again
    assert counts == [int(has_gradients) for _, has_gradients in steps]


def test_a_step_that_is_left_out_has_the_version_of_the_attempt_that_made_it() -> None:
    applied: Applied = {"b": {0: 0}}
    Attempt(applied).passed("a", True, 7)
    again = Attempt(applied)
    for optimizer in "ab":
        again.passed(optimizer, False, 9)
    assert [again.version_of(optimizer, 9) for optimizer in "ab"] == [7, 9], "it is not known of the second"
    again.passed("a", True, 10)
    assert again.version_of("a", 10) == 10


def test_attempts_of_one_pass_know_each_other() -> None:
    applied: Applied = {}
    one = Attempt(applied)
    assert one.is_beside(Attempt(applied))
    assert not any(map(one.is_beside, (one, Attempt({}), None)))


def test_a_pass_with_very_many_steps_does_not_fill_the_memory() -> None:
    applied: Applied = {}
    attempt = Attempt(applied)
    for _ in range(2000):
        assert not attempt.was_applied("a")
        attempt.passed("a", True)
    assert len(applied["a"]) == 1024
