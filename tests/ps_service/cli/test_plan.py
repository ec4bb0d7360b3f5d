"""Tests `ps-service plan`: the file, the tables it prints, and its exit code."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ps_service.cli.commands import app

FILE = """
[owners]
ps0 = "{memory}"
ps1 = "{memory}"
[tables.items]
rows = "50M"
dim = 64
optimizer = "row_wise_adagrad"
[tables.users]
rows = 1e6
dim = 32
dtype = "bfloat16"
optimizer = {{ kind = "sgd", momentum = 0.9 }}
owners = ["ps1"]
"""


def run(tmp_path: Path, text: str, *options: str) -> tuple[int, str, str]:
    file = tmp_path / "tables.toml"
    file.write_text(text)
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["plan", str(file), *options])
    return result.exit_code, result.stdout, result.stderr


def test_a_plan_that_fits(tmp_path: Path) -> None:
    code, out, _ = run(tmp_path, FILE.format(memory="8GiB"))
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for expected in (
        "items float32 row_wise_adagrad 50,000,000 64 290 B",
        "users bfloat16 sgd 1,000,000 32 226 B",
        "items ps0 8,192 25,014,143 6.8 GiB",
        "users ps1 16,384 1,000,000 215.5 MiB",
        "ps0 6.8 GiB 8.0 GiB 84% fits",
        "It fits.",
    ):
        assert expected in lines


def test_what_eviction_keeps_for_a_row_is_counted(tmp_path: Path) -> None:
    for evict, nbytes in (("{ ttl = 86_400 }", 234), ('{ at_capacity = "least_frequent" }', 242)):
        _, out, _ = run(tmp_path, FILE.format(memory="8GiB") + f"evict = {evict}", "--json")
        assert json.loads(out)["parts"][-1]["bytes"] == 1_000_000 * nbytes


def test_a_plan_that_does_not_fit_says_how_many_owners_would_do(tmp_path: Path) -> None:
    code, out, _ = run(tmp_path, FILE.format(memory="4GiB"))
    assert code == 1
    assert "3.0 GiB too much" in out and "4 owners with 4.0 GiB each would hold all tables." in out
    code, out, _ = run(tmp_path, FILE.format(memory="4GiB"), "--json")
    told = json.loads(out)
    assert (code, told["fits"]) == (1, False)
    assert told["parts"][0] == {
        **{"table": "items", "owner": "ps0", "slots": 8192},
        **{"rows": 25_014_143, "bytes": 25_014_143 * 290},
    }
    assert told["owners"][0]["memory"] == 4 << 30
    code, out, _ = run(tmp_path, FILE.format(memory="1KiB"))
    assert code == 1 and "on any number of owners" in " ".join(out.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[owners", "cannot be read: "),
        ("[owners]\nps0 = '1GiB'", "tables: Field required"),
        (FILE.format(memory="much"), "owners.ps0: could not parse value and unit"),
        (FILE.format(memory="1GiB").replace("dim = 64", "dim = 0"), "tables.items.dim: Input should be greater"),
        (FILE.format(memory="1GiB").replace('"50M"', "0.5"), "tables.items.rows: "),
        (
            FILE.format(memory="1GiB").replace("row_wise_adagrad", "adamax"),
            "table 'items' has the optimizer 'adamax', which is unknown; there are sgd, adagrad, row_wise_adagrad,",
        ),
        (
            FILE.format(memory="1GiB").replace("row_wise_adagrad", "row_wise_adagad"),
            "; did you mean 'row_wise_adagrad'?",
        ),
        (
            FILE.format(memory="1GiB").replace("momentum", "momentun"),
            "'sgd' has no momentun; it has lr, momentum, weight_decay; did you mean 'momentum'?",
        ),
        (
            FILE.format(memory="1GiB") + "evict = { tl = 60.0 }",
            "'eviction' has no tl; it has at_capacity, share, spare, ttl; did you mean 'ttl'?",
        ),
        (FILE.format(memory="1GiB").replace('["ps1"]', '["ps9"]'), "table 'users' is for 'ps9'"),
    ],
)
def test_a_file_that_does_not_fit_is_explained(tmp_path: Path, text: str, message: str) -> None:
    code, out, error = run(tmp_path, text)
    assert (code, out) == (2, "")
    assert message in error and "Traceback" not in error


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "none.toml")])
    assert result.exit_code == 2 and "cannot be read" in result.stderr


def test_the_file_that_the_help_shows_is_one(tmp_path: Path) -> None:
    told = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["plan", "--help"]).stdout
    begin, end = told.index("[owners]"), told.index("The exit code")
    shown = "\n".join(line.strip(" │") for line in told[begin:end].splitlines())
    assert len(tomllib.loads(shown)["tables"]["items"]) == 6
    code, out, _ = run(tmp_path, shown)
    assert code == 0 and "items" in out
