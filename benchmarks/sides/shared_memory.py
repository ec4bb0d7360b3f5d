"""Tells whether client and owner have an option to switch shared memory off.

If they have not, `ours` and `ours_tcp` measure the same.
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
