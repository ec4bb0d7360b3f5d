"""Sets what is known of how long work takes, so that busy machines do not decide in tests."""

from __future__ import annotations

from ps_wire.runtime.latency import Latency


def expect(latency: Latency, seconds: float, *, most: int = 1 << 40) -> None:
    """Makes work of any size up to `most` be expected to take so long."""
    latency._seconds = dict.fromkeys(range(most.bit_length() + 1), seconds)
