"""What a file of quotas may say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ps_service.quotas.quota import QuotaFile
from ps_wire.errors import InvalidArgumentError


def test_identities_begin_with_the_default(tmp_path: Path) -> None:
    path = tmp_path / "quotas.toml"
    path.write_text("[default]\nobjects = 5\nsessions = 2\n[identity.anna]\nobjects = inf\n[namespace.ads]\nsessions=1")
    read = QuotaFile(path).read()
    assert (read.identities["anna"].objects, read.identities["anna"].sessions) == (math.inf, 2)
    assert (read.namespaces["ads"].objects, read.namespaces["ads"].sessions) == (math.inf, 1)
    assert read.everybody.sessions == math.inf


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("objects", "is no TOML"),
        ("[everyone]", r"unknown table \[everyone\]"),
        ("identity = 3", r"and not \[identity.NAME\]"),
        ("[identity]\nanna = 3", r"and not \[identity.anna\]"),
        ("[all]\nobjets = 3", r"unknown quota 'objets' in \[all\]"),
        ("[all]\nobjects = -1", "a quota is a number"),
        ("[all]\nobjects = true", "a quota is a number"),
        ("[all]\nobjects = nan", "a quota is a number"),
        ("[all]\nobjects = '4 GiB'", "a quota is a number"),
        ("[all]\ncalls_per_second = 0", "larger than 0"),
        ("[all]\nburst_seconds = inf", "larger than 0"),
    ],
)
def test_what_is_not_valid_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "quotas.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=why):
        QuotaFile(path).read()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        QuotaFile(tmp_path / "none").read()
