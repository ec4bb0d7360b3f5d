"""Tests that a shell completes commands, options and their values with the script that is printed."""

from __future__ import annotations

import subprocess

import pytest
from typer.testing import CliRunner

from ps_service.cli.commands import app


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("che", "checkpoint checkpoint-key"),
        ("ses", "sessions"),
        ("serve --checkpoint-", "--checkpoint-every --checkpoint-key-file"),
        ("serve --log-format ", "auto text json"),
        ("serve --torch-functions ba", "basic"),
        ("evict --s", "--session"),
        ("plan tab", ""),
    ],
)
def test_bash_completes(typed: str, completed: str) -> None:
    script = CliRunner().invoke(app, ["completion"]).output
    words = ["ps-service", *typed.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    asked = f'COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _ps_service; echo "${{COMPREPLY[*]}}"'
    found = subprocess.run(["bash", "-c", f"{script}\n{asked}"], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == completed
    assert not found.stderr
