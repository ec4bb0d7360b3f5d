"""How far the job is from the same job in one process."""

from __future__ import annotations

from torch import Tensor

from examples.hybrid_ddp.job import Outcome


def differences(outcome: Outcome, expected: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference of each parameter, by where it lives.

    Args:
        outcome: Of the job.
        expected: All parameters by name, as one process finds them.
    """
    found = {"ps: table": (outcome.table, expected["table"])}
    for rank, layer in enumerate(outcome.layers):
        found |= {f"trainer{rank}: {name}": (value, expected[name]) for name, value in layer.items()}
    return {place: float((here - there).abs().max()) for place, (here, there) in found.items()}
