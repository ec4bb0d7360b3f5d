"""Programs that show how to use it. Each starts the processes that it needs, and ends them."""

from __future__ import annotations

import sys
from types import TracebackType

_OURS = {"examples", "ps_service", "ps_wire", "trainer_client"}


def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Says in one line what a user can do something about, and shows other errors as Python does."""
    if isinstance(error, KeyboardInterrupt):
        print("stopped; nothing is left running", flush=True)
    elif isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] not in _OURS:
        needed = error.name.partition(".")[0]
        print(
            f"this example needs {needed}, which is not installed: `make setup` installs all that examples need, "
            "or pip install -e '.[server,demo]'",
            file=sys.stderr,
        )
    else:
        sys.__excepthook__(kind, error, trace)


# Python calls itself "-m" while it looks for the module that it was told to run: one of these programs begins.
if sys.argv[:1] == ["-m"]:
    sys.excepthook = tell
