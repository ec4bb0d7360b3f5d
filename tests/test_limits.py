"""docs/limits.md says what the settings are: it is held against them."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from ps_service.config import OwnerConfig
from ps_wire.limits import Limits

TABLE = (Path(__file__).parent.parent / "docs" / "limits.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+)", TABLE, re.MULTILINE))


def test_every_limit_stands_in_the_table() -> None:
    # Segments are switched on or off by `shared-memory connection`.
    assert {field.name for field in fields(Limits)} - {"max_segment_bytes"} <= ROWS.keys()


def test_the_defaults_are_those_of_the_settings() -> None:
    for name, default in ROWS.items():
        assert float(default) == OwnerConfig.model_fields[name].default, name


def test_the_defaults_of_limits_and_configuration_are_equal() -> None:
    for field in fields(Limits):
        if field.name != "max_segment_bytes":
            assert field.default == OwnerConfig.model_fields[field.name].default, field.name
