"""Pins: they are freed by the garbage collector in any thread, whatever lock that thread holds."""

from __future__ import annotations

import gc
import threading

from ps_service.parameters.locks import ParameterLocks, Reading
from ps_wire.connections.buffers import BufferPool
from ps_wire.limits import MIB
from tests.ps_service.parameters.watch import Watch
from tests.ps_service.threads import PATIENCE, Worker


class _Garbage:
    """Holds a pin in a cycle, so that only the garbage collector frees it."""

    def __init__(self, parameter_locks: ParameterLocks, reading: Reading) -> None:
        self.itself = self
        self._parameter_locks = parameter_locks
        self._pin = reading.pins[0]
        parameter_locks.save(self._pin)

    def __del__(self) -> None:
        self._parameter_locks.free(self._pin)


def test_pins_that_are_collected_inside_the_lock_do_not_deadlock() -> None:
    watch = Watch(2)
    with watch.reading() as reading:
        _Garbage(watch.parameter_locks, reading)

    def collect() -> None:
        with watch.parameter_locks.lock:
            gc.collect()

    Worker(collect).result()
    assert reading.pins[0].saved == 0


def test_pins_are_freed_without_the_lock_in_any_thread() -> None:
    watch = Watch(2)
    with watch.reading() as reading:
        _Garbage(watch.parameter_locks, reading)
    with watch.parameter_locks.lock:
        Worker(gc.collect).result()
    assert reading.pins[0].saved == 0


def test_two_collections_under_the_locks_of_each_others_finalizers_do_not_deadlock() -> None:
    watch, pool = Watch(2), BufferPool(4 * MIB)
    both = threading.Barrier(2)
    with watch.reading() as reading:
        pin = _Garbage(watch.parameter_locks, reading)
    buffer = [pool.take(MIB)]

    def under_the_pools_lock() -> None:
        nonlocal pin
        with pool._lock:
            both.wait(PATIENCE)
            del pin
            gc.collect()

    def under_the_ledgers_lock() -> None:
        with watch.parameter_locks.lock:
            both.wait(PATIENCE)
            buffer.clear()

    for worker in [Worker(under_the_pools_lock), Worker(under_the_ledgers_lock)]:
        worker.result()
    assert reading.pins[0].saved == 0
    lent = pool.take(MIB)
    assert len(lent) == MIB and pool.kept == 0, "what was returned meanwhile is lent again"
