"""What all processes that run tests at the same time are forked from: torch is imported once for all of them."""

from __future__ import annotations

import json
import os
from typing import Final

import pytest

from tests.forking.process import Forking

SHARED: Final = "FORKING_SHARED"
"""In the environment of the processes that run tests: the variables of what all of them fork from."""

_FORKING: Final = pytest.StashKey[Forking]()


def begin(config: pytest.Config) -> None:
    """Starts it if tests are to run in several processes: it imports while this process does so, too."""
    if getattr(config.known_args_namespace, "numprocesses", None) and SHARED not in os.environ:
        config.stash[_FORKING] = Forking(more=["examples", "benchmarks"])


def use(config: pytest.Config) -> None:
    """Has the processes that run tests be forked from it, if it was started; it ends with this process's tests.

    They compute in one thread each, as those that a test forks do: threads that wait for each other would spin.
    """
    if (forking := config.stash.get(_FORKING, None)) is None:
        return
    config.option.tx = [f"popen//python={forking.python}"] * len(config.option.tx)
    os.environ |= forking.variables | {SHARED: json.dumps(forking.variables)}
    config.add_cleanup(forking.close)
