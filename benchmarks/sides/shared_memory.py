"""Shared memory: whether both halves of this project know it, and so can be told not to use it.

Where they do not, `ours` and `ours_tcp` are the same thing measured twice.
"""

from __future__ import annotations

import inspect


def known_to_client() -> bool:
    """Whether `connect` takes `shared_memory=False`."""
    import trainer_client

    return "shared_memory" in inspect.signature(trainer_client.connect).parameters


def known_to_owner() -> bool:
    """Whether `ps-service serve` takes `--no-shared-memory`."""
    from ps_service.cli import commands

    return not {"shared_memory", "no_shared_memory"}.isdisjoint(inspect.signature(commands.serve).parameters)
