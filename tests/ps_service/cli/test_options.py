"""Tests that each field of the configuration is an option, and that only given options are passed on."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from ps_service.cli.options import with_settings
from ps_service.config import OwnerConfig

FLAGS: dict[str, tuple[list[str], Any]] = {
    "name": (["--name", "ps7"], "ps7"),
    "imports": (["--import", "a,b", "--import", "c"], ["a,b", "c"]),
    "data_dir": (["--data-dir", "here"], "here"),
    "threads": (["--threads", "3"], 3),
    "torch_functions": (["--torch-functions", "all"], "all"),
    "lease_seconds": (["--lease-seconds", "1.5"], 1.5),
    "shared_memory": (["--no-shared-memory"], False),
    "insecure": (["--insecure"], True),
}


def given(arguments: list[str]) -> dict[str, Any]:
    """What a command gets for some arguments."""
    app, seen = typer.Typer(), dict[str, Any]()

    @app.command()
    @with_settings
    def command(own: Annotated[str, typer.Option("--own")] = "mine", **flags: Any) -> None:
        """Keeps what it is given."""
        seen.update(flags, own=own)

    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return seen


def test_missing_options_are_none_or_empty() -> None:
    seen = given([])
    assert seen.pop("own") == "mine"
    assert seen.keys() == OwnerConfig.model_fields.keys()
    assert all(value in (None, []) for value in seen.values())


@pytest.mark.parametrize("field", FLAGS)
def test_a_field_is_given_by_its_flag(field: str) -> None:
    arguments, value = FLAGS[field]
    seen = given([*arguments, "--own", "yours"])
    assert seen.pop("own") == "yours"
    assert {name: each for name, each in seen.items() if each not in (None, [])} == {field: value}
    assert type(seen[field]) is type(value)
    assert getattr(OwnerConfig(**{field: value}), field) is not None


def test_a_flag_that_does_not_fit_is_refused_by_its_name() -> None:
    app = typer.Typer()
    app.command()(with_settings(lambda **flags: None))
    result = CliRunner().invoke(app, ["--threads", "many"])
    assert result.exit_code == 2
    assert "--threads" in result.output
