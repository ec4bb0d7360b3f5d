"""Compiles the loops of tables: beside an owner that starts, or when a process makes its first table."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
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

_PROGRAM: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from ps_service.tables.preparing import fill_cache
fill_cache()
"""


class Preparation:
    """Runs every compiled loop once in a process, so that no look-up and no step waits for a compiler.

    That takes about one second, or the first time on a machine, where numba compiles all of them, 6 to 11 seconds of
    one processor: the command `ps-service serve` has that done at its start (`compile_soon`).
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
            cache = CodeCache()
            turn = None if cache.complete else _turn(cache)
            try:
                begin, compiling = time.monotonic(), not cache.complete
                if compiling:
                    _log.info("compiling the loops of tables, once on this machine: the first table waits for it")
                _run_all(make)
                if compiling:
                    cache.mark()
                    _log.info("compiled the loops of tables in %.1f s", time.monotonic() - begin)
            finally:
                self._ended = True
                if turn is not None:
                    os.close(turn)


PREPARATION: Final = Preparation()
"""That of this process."""


def _turn(cache: CodeCache) -> int | None:
    """The turn to compile, once another process gives it back; None if each process compiles for itself."""
    with suppress(OSError):
        turn = cache.turn(wait=False)
        if turn is None:
            _log.info("a table waits until another process has compiled the loops of tables, once on this machine")
            with waiting:
                turn = cache.turn(wait=True)
            _log.info("the table goes on")
        return turn
    return None


def _run_all(make: Callable[..., Any]) -> None:
    ids, gradients = torch.tensor([1, 2, 1], device="cpu"), torch.zeros(3, 8, device="cpu")
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
    kernels.sum(kernels.group(torch.tensor([1, 1], device="cpu"), torch.zeros(2, 8, device="cpu")))


# Beside an owner that starts


def compile_soon(has_tables: bool = True) -> threading.Thread | None:
    """Has everything compiled in another process, and returns at once, with a thread that waits for that process.

    numba's compiler holds Python's global lock for long, and an owner serves meanwhile. The process ends with this one.
    None is returned if there is nothing to do, or the code could not be kept on disk. The log tells it where there are
    tables; otherwise it is for debugging only, because most programs make none. A table that waits for it says so.
    """
    level = logging.INFO if has_tables else logging.DEBUG
    # Not `compiled.available()`, which imports numba: this runs in the event loop of an owner that serves.
    if not compiled.is_installed():
        return None
    cache = CodeCache()
    try:
        turn = None if cache.complete else cache.turn(wait=False)
    except OSError as error:
        _log.log(
            *(level, "the loops of tables are compiled in each process that has a table, because no code is kept: %s"),
            error,
        )
        return None
    if turn is None:
        return None
    thread = threading.Thread(target=_compile, args=(turn, level), name="ps-compile", daemon=True)
    thread.start()
    return thread


def _compile(turn: int, level: int) -> None:
    failed = logging.WARNING if level == logging.INFO else level
    _log.log(level, "compiling the loops of tables, once on this machine: a table that is made meanwhile waits for it")
    begin = time.monotonic()
    try:
        # It ends when its standard input does. In a session of its own, it does not get Ctrl-C of the owner's terminal.
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            pass_fds=(turn,), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        _log.log(failed, "the loops of tables are compiled when the first table is made: %s", error)
        return
    finally:
        os.close(turn)
    assert process.stderr is not None
    told = process.stderr.read().decode(errors="replace").strip()
    if process.wait() == 0:
        _log.log(level, "compiled the loops of tables in %.1f s", time.monotonic() - begin)
    else:
        why = told.splitlines()[-1] if told else f"the compiler's process ended with {process.returncode}"
        _log.log(failed, "the loops of tables are compiled when the first table is made: %s", why)


def fill_cache() -> None:
    """The work of that process, until its input ends. The owner has given it the turn to compile."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    _run_all(TableShard)
    CodeCache().mark()


def _end_with_input() -> None:
    os.read(0, 1)  # not with `sys.stdin`: a thread that holds its lock at exit is a fatal error
    os._exit(1)
