"""Runs a program that ends when the process that started it ends, even by SIGKILL.

python -m benchmarks.leash PARENT PROGRAM [ARGUMENTS]
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Replaces this process by the program, with the same PID."""
    parent, *command = sys.argv[1:]
    end_with_parent()
    # The parent may have ended before prctl was called.
    if os.getppid() != int(parent):
        sys.exit(1)
    os.execvp(command[0], command)


def end_with_parent() -> None:
    """Lets the system kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
