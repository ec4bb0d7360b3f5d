"""Any number of trainers of a network whose layers are on several owners.

Owners are started with ``--import examples.digits.cluster``, and trainers with ``python -m examples.digits.cluster``.
"""

from __future__ import annotations

from examples.digits.cluster.layers import Layers

__all__ = ["Layers"]
