"""Becomes another program, which gets a signal when the process that has started it ends, however that ends.

python -IS tied.py SIGNAL PARENT PROGRAM [ARGUMENTS]
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Replaces this process by the program, with the same number."""
    number, parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(parent):  # it has ended before that
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
