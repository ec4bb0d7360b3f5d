"""Compiles the loops of tables in a process beside the owner, before anybody makes a table."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from typing import Final

from ps_service.tables.compiled import CodeCache, is_installed

_log = logging.getLogger(__name__)

_PROGRAM: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from ps_service.tables.preparing import fill_cache
fill_cache()
"""


def compile_soon() -> threading.Thread | None:
    """Has everything compiled in another process, and returns at once, with a thread that waits for that process.

    numba's compiler holds Python's global lock for long, and an owner serves meanwhile. The process ends with this one.
    None is returned if there is nothing to do, or the code could not be kept on disk.
    """
    # Not `compiled.available()`, which imports numba: this runs in the event loop of an owner that serves.
    if not is_installed():
        return None
    cache = CodeCache()
    try:
        turn = None if cache.complete else cache.turn(wait=False)
    except OSError as error:
        _log.info(
            "the loops of tables are compiled in each process that has a table, because no code is kept: %s", error
        )
        return None
    if turn is None:
        return None
    thread = threading.Thread(target=_compile, args=(turn,), name="ps-compile", daemon=True)
    thread.start()
    return thread


def _compile(turn: int) -> None:
    _log.info("compiling the loops of tables, once on this machine: a table that is made meanwhile waits for it")
    begin = time.monotonic()
    try:
        # It ends when its standard input does. In a session of its own, it does not get Ctrl-C of the owner's terminal.
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            pass_fds=(turn,), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        _log.warning("the loops of tables are compiled when the first table is made: %s", error)
        return
    finally:
        os.close(turn)
    assert process.stderr is not None
    told = process.stderr.read().decode(errors="replace").strip()
    if process.wait() == 0:
        _log.info("compiled the loops of tables in %.1f s", time.monotonic() - begin)
    else:
        why = told.splitlines()[-1] if told else f"the compiler's process ended with {process.returncode}"
        _log.warning("the loops of tables are compiled when the first table is made: %s", why)
