"""An exporter of the crash test: the command, with its log in a file.

python -m tests.crash.exporter LOG ARGUMENT...

The arguments are those of `ps-service export`.
"""

from __future__ import annotations

import os
import sys

from ps_service.cli import commands


def main() -> None:
    log, *arguments = sys.argv[1:]
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.argv[1:] = ["export", *arguments]
    commands.main()


if __name__ == "__main__":
    main()
