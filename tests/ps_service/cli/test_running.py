"""Tests what `ps-service run` refuses before it starts anything, and which options its owners get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ps_service.cli import entry
from ps_service.cli.commands import app
from ps_service.cli.options import OF_ONE, flags_of, with_settings, with_settings_of_owners
from ps_service.cli.running import left_aside, own_flags
from ps_service.config import OwnerConfig

GIVEN: dict[str, Any] = {
    "imports": ["a", "b"],
    "threads": 3,
    "shared_memory": False,
    "compile_tables": True,
    "insecure": True,
    "durability": "always",
    "lease_seconds": 1.5,
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.py"], "ps-service: there is no file train.py; for a module, give -m before its name"),
        (["--owners", "0", "-m", "train"], "Invalid value for '--owners'"),
        (["--lease-seconds", "0", "-m", "train"], "the configuration is not valid:\n  lease_seconds: "),
        (["--http", "here", "-m", "train"], "http: Value error, 'here' is not HOST:PORT"),
        (["--name", "ps7", "-m", "train"], "No such option: --name"),
        (["--config", "owner.toml", "-m", "train"], "there is no configuration file owner.toml"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_run_is_told_before_anything_starts(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run", *arguments])
    assert done.exit_code == 2
    assert message in done.output


def test_owners_that_would_drain_at_once_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PS_UNTIL_EOF", "true")
    done = CliRunner().invoke(app, ["run", "-m", "train", "--owners", "0"])  # which is an option of the program
    assert done.exit_code == 2
    assert "until_eof would have the owners drain at once" in done.output


def test_options_of_owners_become_their_arguments_again() -> None:
    seen: dict[str, Any] = {}
    serve = typer.Typer()
    serve.command()(with_settings(lambda **flags: seen.update(flags)))
    flags = flags_of(GIVEN | {"name": None, "leave_out": []})
    assert flags[:4] == ["--import", "a", "--import", "b"]
    assert CliRunner().invoke(serve, flags).exit_code == 0
    assert {name: value for name, value in seen.items() if value not in (None, [])} == GIVEN


def test_owners_get_what_is_theirs_alone() -> None:
    given = OwnerConfig(http="127.0.0.1:9464", data_dir=Path("kept"), direct_port=7000)
    assert own_flags(given, 1) == ["--http", "127.0.0.1:9465", "--data-dir", "kept/ps1", "--direct-port", "7001"]
    assert own_flags(OwnerConfig(direct_port="off"), 1) == []
    assert own_flags(OwnerConfig(http="127.0.0.1:0"), 1) == ["--http", "127.0.0.1:0"]
    assert own_flags(OwnerConfig(), 1) == []


def test_owners_that_are_not_started_are_told(tmp_path: Path) -> None:
    for name in ("ps0", "ps1", "ps2", "ps10", "ps01", "psx", "other"):
        (tmp_path / name).mkdir()
    assert left_aside(tmp_path, 2) == ["ps10", "ps2"]
    assert left_aside(tmp_path, 11) == left_aside(None, 1) == left_aside(tmp_path / "none", 1) == []


def test_ctrl_c_while_modules_are_imported_is_told_by_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "import_module", interrupted)
    monkeypatch.setattr("sys.argv", ["ps-service", "run"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130


def test_a_command_for_several_owners_has_the_options_that_they_share() -> None:
    app, seen = typer.Typer(), dict[str, Any]()

    @app.command()
    @with_settings_of_owners
    def command(data_dir: str = "", **flags: Any) -> None:
        """Keeps what it is given."""
        seen.update(flags)

    assert CliRunner().invoke(app, ["--threads", "3", "--data-dir", "kept"]).exit_code == 0
    assert seen.keys() == OwnerConfig.model_fields.keys() - {"data_dir", *OF_ONE}
    assert seen["threads"] == 3
    assert "--threads" not in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize("command", ["status", "drain"])
def test_of_several_addresses_in_the_variable_commands_take_the_first(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PS_ADDRESS", "127.0.0.1:1, 127.0.0.1:2")
    done = CliRunner().invoke(app, [command])
    assert done.exit_code != 0
    assert "127.0.0.1:1" in done.output and "127.0.0.1:2" not in done.output
