"""Who must not block is told that it would have to wait, and nothing has changed."""

from __future__ import annotations

import pytest

from ps_service.parameters.locks import StepLock, WouldBlock
from tests.ps_service.parameters.watch import LARGE, Watch, sum_of_leaves
from tests.ps_service.threads import Worker, in_a_hurry


def test_a_step_that_must_not_wait_changes_nothing() -> None:
    watch = Watch(2)
    with watch.writing(0):
        other = Worker(lambda: nonblocking(watch))
        assert other.result() == ["reading", "writing"]
    with watch.parameter_locks.stepping(watch.states):
        assert Worker(lambda: hurried_step(watch)).result()
    # Without a conflict, hurry changes nothing.
    with in_a_hurry(watch.parameter_locks):
        assert sum_of_leaves(watch, 0) == 0.0
        watch.step()
    assert sum_of_leaves(watch, 0) == 2.0


def test_a_step_that_must_not_wait_does_not_wait_for_readers() -> None:
    watch = Watch(LARGE)
    with watch.reading(0):
        assert Worker(lambda: nonblocking(watch)).result() == ["writing"]
    assert not watch.states[0].claimed
    watch.step()


def test_a_lock_is_not_waited_for_in_a_hurry() -> None:
    watch = Watch(2)
    lock = StepLock(watch.parameter_locks.this_thread)
    with lock, lock:

        def other() -> None:
            with in_a_hurry(watch.parameter_locks), pytest.raises(WouldBlock), lock:
                pass

        Worker(other).result()
    with in_a_hurry(watch.parameter_locks), lock:
        pass


def nonblocking(watch: Watch) -> list[str]:
    """What would have waited."""
    would = []
    with in_a_hurry(watch.parameter_locks):
        try:
            with watch.reading(0):
                pass
        except WouldBlock:
            would.append("reading")
        try:
            with watch.writing(0):
                pass
        except WouldBlock:
            would.append("writing")
    return would


def hurried_step(watch: Watch) -> bool:
    try:
        with in_a_hurry(watch.parameter_locks), watch.parameter_locks.stepping(watch.states):
            return False
    except WouldBlock:
        return True
