"""Lane: whether both halves of this project know the same-host lane, and so can be told not to take it.

Where they do not, `ours` and `ours_tcp` are the same thing measured twice.
"""

from __future__ import annotations

import inspect


def known_to_client() -> bool:
    """Whether `connect` takes `lane=False`."""
    import trainer_client

    return "lane" in inspect.signature(trainer_client.connect).parameters


def known_to_owner() -> bool:
    """Whether `ps-service serve` takes `--no-lane`."""
    from ps_service import cli

    return not {"lane", "no_lane"}.isdisjoint(inspect.signature(cli.serve).parameters)
