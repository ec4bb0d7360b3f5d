"""The commands that write tokens, and tell what they allow."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest
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
    path.chmod(0o600)
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


def test_a_changed_file_keeps_who_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    file = ("--file", str(path))
    run("token", "add", "alice", "--role", "trainer", *file)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12345, 23456)
    before = path.stat()
    run("token", "add", "bob", "--role", "reader", *file)
    run("token", "revoke", "alice", *file)
    after = path.stat()
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)


def test_a_symbolic_link_to_the_file_stays(tmp_path: Path) -> None:
    kept = tmp_path / "shared" / "tokens"
    kept.parent.mkdir()
    link = tmp_path / "tokens"
    link.symlink_to(kept)
    file = ("--file", str(link))
    run("token", "add", "alice", "--role", "trainer", *file)
    run("token", "add", "bob", "--role", "trainer", *file)
    run("token", "revoke", "alice", *file)
    assert link.is_symlink()
    assert [each.name for each in TokenFile(kept).read()] == ["bob"]


def test_a_file_that_cannot_be_written_is_told_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    file = ("--file", str(path))
    run("token", "add", "alice", "--role", "trainer", *file)
    before = path.read_text()
    below = ("--file", str(path / "tokens"))
    assert "tokens cannot be written" in run("token", "add", "bob", "--role", "trainer", *below, code=1)

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)  # the tests may run as root, whom no mode of a folder stops
    told = run("token", "revoke", "alice", *file, code=1)
    assert "tokens cannot be written: No space left on device" in told and "revoked" not in told
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


def test_the_matrix_has_every_operation() -> None:
    told = {each["operation"]: each["roles"] for each in json.loads(run("access", "--json"))}
    assert told.keys() > OPERATIONS.keys()
    assert told["evict"] == {"reader": "no", "trainer": "no", "bulk": "no", "admin": "yes", "owner": "yes"}
    assert told["call"]["reader"] == "(yes)" and told["Claim"]["admin"] == "no" and told["/healthz"]["reader"] == "yes"
