"""The commands that write tokens, and tell what they allow."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from typer.testing import CliRunner

from ps_service.access.access import Access
from ps_service.access.token_file import TokenFile
from ps_service.cli.commands import app
from ps_service.requests.operations import OPERATIONS


def run(*arguments: str, code: int = 0) -> str:
    ran = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments), catch_exceptions=False)
    assert ran.exit_code == code, ran.output
    return ran.output.strip()


def test_tokens_are_added_explained_and_revoked(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    file = ("--file", str(path))
    path.write_text("# of the team\n")
    token = run("token", "add", "alice", "--role", "trainer", "--expires", "30d", *file)
    again = run("token", "add", "alice", "--role", "trainer", "--namespace", "ads=reader", *file)
    assert run("token", "add", "bob", "--role", "reader", "--certificate", "bob.example", *file) == ""
    assert token != again and token not in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600
    access = Access("ps0", TokenFile(path))
    assert [access.identify([f"Bearer {each}"]).name for each in (token, again)] == ["alice", "alice"]
    listed = run("token", "list", *file)
    assert "trainer; reader in ads" in listed and "bob.example" in listed and "expires" in listed
    assert "alice: yes" in run("access", "explain", "alice", "step", *file)
    assert "delete needs the role admin" in run("access", "explain", "alice", "delete", *file, code=1)
    assert "in part" in run("access", "explain", "bob", "call", *file)
    assert "alice may call 'net' of the namespace 'ads'" in run("access", "explain", "alice", "ads::net", *file)
    assert "may do nothing with" in run("access", "explain", "bob", "net", "--namespace", "ads", *file, code=1)
    assert "alice was revoked (2 entries)" in run("token", "revoke", "alice", *file)
    assert "has no identity 'alice'" in run("token", "revoke", "alice", *file, code=1)
    assert path.read_text().startswith("# of the team\n")
    assert "there is no role 'king'" in run("token", "add", "eve", "--role", "king", *file, code=1)
    assert "has no role" in run("token", "add", "eve", *file, code=1)
    assert "is no time" in run("token", "add", "eve", "--role", "admin", "--expires", "soon", *file, code=1)


def test_the_matrix_has_every_operation() -> None:
    told = {each["operation"]: each["roles"] for each in json.loads(run("access", "--json"))}
    assert told.keys() > OPERATIONS.keys()
    assert told["evict"] == {"reader": "no", "trainer": "no", "bulk": "no", "admin": "yes", "owner": "yes"}
    assert told["call"]["reader"] == "(yes)" and told["Claim"]["admin"] == "no" and told["/healthz"]["reader"] == "yes"
