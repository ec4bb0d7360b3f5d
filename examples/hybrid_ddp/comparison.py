"""Compares the job with the same job in one process."""

from __future__ import annotations

from torch import Tensor

from examples.hybrid_ddp.job import Outcome


def differences(outcome: Outcome, expected: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference of each parameter, by member and name.

    Args:
        outcome: The outcome of the job.
        expected: All parameters by name, from the job in one process.
    """
    found = {"ps: table": (outcome.table, expected["table"])}
    for rank, layer in enumerate(outcome.layers):
        found |= {f"trainer{rank}: {name}": (value, expected[name]) for name, value in layer.items()}
    return {place: float((here - there).detach().abs().max()) for place, (here, there) in found.items()}
