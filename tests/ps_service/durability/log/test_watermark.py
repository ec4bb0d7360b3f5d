"""Tests which version of an optimizer is said to be on the disk."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from ps_service.durability.log.log import Log
from ps_service.durability.log.watermark import Watermark


class HostedOptimizerStandIn:
    """Has what a watermark reads of an optimizer."""

    version = 7


def test_durable_versions_are_those_whose_records_are_on_the_disk(tmp_path: Path) -> None:
    optimizer: Any = HostedOptimizerStandIn()
    with closing(Log(tmp_path, None)) as log:
        log.open(0)
        watermark = Watermark(log)
        assert watermark.durable(optimizer) == 7  # as the owner has found it
        for version in range(8, 5000):
            watermark.note(optimizer, version, log.append(b"step"), version - 1)
            optimizer.version = version
            if version == 100:
                log.sync()
            if version == 3000:
                log.sync()
                assert 2990 <= watermark.durable(optimizer) <= 3000
        assert 2990 <= watermark.durable(optimizer) <= 3000
        log.sync()
        assert watermark.durable(optimizer) == 4999
