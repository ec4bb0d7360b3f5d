"""What members of a group do in the examples before they work, and while they wait for calls."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from trainer_client import rpc

START_SECONDS: Final = 300.0
"""Until all have joined. Each imports torch, which takes a minute on a very busy machine."""


def gather(names: Sequence[str]) -> None:
    """Waits until all members have joined, and says for whom.

    Raises:
        DeadlineExceededError: One did not join within five minutes.
        UnavailableError: One was lost.
    """
    rpc.barrier(names, timeout=START_SECONDS)


def serve(names: Sequence[str]) -> None:
    """Runs calls of others until all members leave, and leaves with them."""
    # It is meant to wait in shutdown() for as long as they work, and need not say so again and again.
    logging.getLogger("trainer_client").setLevel(logging.ERROR)
    rpc.shutdown(group=names)
