"""An owner of the crash test: the owner as it is, with points at which it can end itself.

python -m tests.crash.owner SHADOW LOG POINT COUNT FLAG...

SHADOW is the folder for what the disk would have, LOG the file for what it tells, and POINT, if it is not empty, is
armed from the start. The flags are those of `ps-service serve`. It reads commands from its standard input, one a line:
`arm POINT COUNT`, `disarm`, and `checkpoint`, which writes one.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from ps_service.cli import commands
from ps_service.engine import Checkpoints
from ps_wire.errors import PsError
from tests.crash import hooks
from tests.crash.points import Points
from tests.crash.shadow import Shadow
from tests.crash.watched_files import WatchedFiles

SEGMENT_BYTES: Final = 64 * 1024
"""Size of the files of the log: small, so that an owner changes them often."""


def listen(points: Points, made: list[Checkpoints]) -> None:
    """Follows the commands."""
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "arm":
            points.arm(arguments[0], int(arguments[1]))
        elif command == "disarm":
            points.arm("", 0)
        elif made:
            with suppress(PsError):  # it is starting, or being stopped
                made[0].write()


def main() -> None:
    shadow, told, point, count, *flags = sys.argv[1:]
    os.dup2(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    faulthandler.register(signal.SIGUSR1)
    data = Path(flags[flags.index("--data-dir") + 1])
    points = Points()
    made: list[Checkpoints] = []
    own = Checkpoints.__init__

    def init(self: Checkpoints, *args: object) -> None:
        own(self, *args)  # type: ignore[arg-type]
        made.append(self)

    Checkpoints.__init__ = init  # type: ignore[method-assign, assignment]
    kept = Shadow(data, Path(shadow))
    kept.compact()
    hooks.install(points, SEGMENT_BYTES)
    WatchedFiles(kept, points).install()
    points.arm(point, int(count))
    threading.Thread(target=listen, args=(points, made), daemon=True).start()
    sys.argv[1:] = ["serve", *flags]
    commands.main()


if __name__ == "__main__":
    main()
