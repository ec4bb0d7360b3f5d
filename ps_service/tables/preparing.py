"""Compiles what tables need when a process makes its first one."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import torch

from ps_service.tables import compiled
from ps_service.tables.compiled import CodeCache
from ps_service.tables.kernels import make_kernels
from ps_service.tables.shard import TableShard
from ps_wire.runtime.locks import ReportingLock
from ps_wire.runtime.scopes import waiting
from ps_wire.tables.options import FTRL, SGD, Adagrad, LazyAdam, Normal, PartialRowWiseAdam, RowWiseAdagrad

_log = logging.getLogger(__name__)


class Preparation:
    """Runs every compiled loop once in a process, so that no look-up and no step waits for a compiler.

    That takes about one second, or the first time on a machine, where numba compiles all of them, 6 to 11 seconds of
    one processor: the command `ps-service serve` has that done at its start (`ps_service.tables.compiling`).
    """

    def __init__(self) -> None:
        self._lock: Final = ReportingLock()
        self._ended = False

    def ensure(self, make: Callable[..., Any] = TableShard) -> None:
        """Returns when everything is compiled, in any thread. Does nothing without numba. `make` makes a shard."""
        if self._ended or not compiled.available():
            return
        with self._lock:
            if self._ended:
                return
            try:
                cache = CodeCache()
                if cache.complete:
                    self._run_all(make)
                else:
                    self._fill(cache, make)
            finally:
                self._ended = True

    def run(self) -> None:
        """The same in a process that has the turn to fill the cache."""
        self._run_all(TableShard)
        CodeCache().mark()

    def _fill(self, cache: CodeCache, make: Callable[..., Any]) -> None:
        turn = None
        with suppress(OSError):  # then each process compiles for itself
            turn = cache.turn(wait=False)
            if turn is None:
                _log.info("a table waits until another process has compiled the loops of tables, once on this machine")
                with waiting:
                    turn = cache.turn(wait=True)
        try:
            begin, compiling = time.monotonic(), not cache.complete
            if compiling:
                _log.info("compiling the loops of tables, once on this machine: the first table waits for it")
            self._run_all(make)
            if compiling:
                cache.mark()
                _log.info("compiled the loops of tables in %.1f s", time.monotonic() - begin)
        finally:
            if turn is not None:
                os.close(turn)

    def _run_all(self, make: Callable[..., Any]) -> None:
        ids, gradients = torch.tensor([1, 2, 1]), torch.zeros(3, 8)
        every = (SGD(), SGD(momentum=0.5), Adagrad(), RowWiseAdagrad(), LazyAdam(), PartialRowWiseAdam(), FTRL())
        for optimizer in every:
            shard = make(8, optimizer, Normal())
            shard.look_up(ids, add=False)
            shard.look_up(ids)
            keys = ids - 1  # the first two rows have these
            shard.update(shard.gradient(keys, gradients, None, None, 3).pending)
            shard.remove(ids)
        fixed = make(8, SGD(), Normal(), rows=3)
        fixed.look_up(ids)
        fixed.remove(ids)
        kernels = make_kernels("numba")
        kernels.sum(kernels.group(torch.tensor([1, 1]), torch.zeros(2, 8)))


PREPARATION: Final = Preparation()
"""That of this process."""


def fill_cache() -> None:
    """The work of the process that an owner starts (`ps_service.tables.compiling`), until its input ends.

    The owner has given it the turn to compile.
    """
    threading.Thread(target=_end_with_input, daemon=True).start()
    PREPARATION.run()


def _end_with_input() -> None:
    os.read(0, 1)  # not with `sys.stdin`: a thread that holds its lock at exit is a fatal error
    os._exit(1)
