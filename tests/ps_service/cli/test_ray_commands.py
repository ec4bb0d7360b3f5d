"""Tests of `ps-service ray` where no Ray is: tests/ray has those with one."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from ps_service.cli.commands import app


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ps_service.ray.cluster", raising=False)


@pytest.mark.parametrize("command", [("up", "--owners", "2"), ("status",), ("down",)])
def test_without_the_package_the_error_names_the_extra(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["ray", *command])
    assert result.exit_code == 2
    assert "pip install 'torch-parameter-server[ray]'" in result.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--label", "owner"), "--label takes KEY=VALUE"),
        (("--resource", "disk=much"), "--resource disk= takes a number, not 'much'"),
        (("--memory", "much"), "--memory takes a size such as 16GiB, not 'much'"),
        (("--owners", "0"), "--owners"),
    ],
)
def test_what_makes_no_sense_is_refused_before_ray_is_needed(given: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["ray", "up", *given])
    assert result.exit_code == 2 and message in result.stderr
