"""What the story of the cluster rests on, without a cluster: it would notice, and it would not wait for ever."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from examples.digits.cluster.messages import Step
from tests.cluster import accounts, engine
from tests.cluster.engine import EngineError
from tests.cluster.waiting import WaitedInVain, wait_for


def told(*versions: int) -> list[Step]:
    return [Step(number, 0.5, {"ps0": version, "ps1": 1}) for number, version in enumerate(versions, 1)]


@pytest.mark.parametrize(("versions", "kills"), [((3, 1, 2), 0), ((1, 3), 1), ((1, 2), 1), ((2, 3), 1), ((), 3)])
def test_each_version_must_be_reported_once(versions: tuple[int, ...], kills: int) -> None:
    accounts.check("ps0", told(*versions), 3, kills)


@pytest.mark.parametrize(
    ("versions", "kills", "message"),
    [
        ((1, 2, 2, 3), 1, r"more than once: \[2\]"),
        ((1, 2, 3, 4), 1, r"is at version 3 and told these: \[4\]"),
        ((0, 1, 2, 3), 1, r"is at version 3 and told these: \[0\]"),
        ((1, 3), 0, r"reported versions \[2\] to no trainer"),
        ((2,), 1, r"reported versions \[1, 3\] to no trainer"),
    ],
)
def test_anything_else_is_found_out(versions: tuple[int, ...], kills: int, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        accounts.check("ps0", told(*versions), 3, kills)


def test_a_wait_returns_the_result_or_fails_with_its_name() -> None:
    looks = itertools.count()
    assert wait_for("the second look", lambda: next(looks) or None, 60) == 1
    with pytest.raises(WaitedInVain, match="waited 0 s in vain for rain"):
        wait_for("rain", lambda: None, 0)


def test_without_an_engine_the_tests_fail_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="need a Docker engine, and there is none: there is no command 'docker'"):
        engine.check()
    broken = tmp_path / "docker"
    broken.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon'\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(EngineError, match=r"there is none: docker info.*ended with code 1[^$]*Cannot connect"):
        engine.check()
