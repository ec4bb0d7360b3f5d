"""Tests the fingerprints of sources where parsing fails, as Python 3.11 does if two threads parse at once."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from ps_wire.codec import sources


class Net:
    """A class with a source."""


def test_one_thread_parses_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, held = ast.parse, []

    def parsing(text: str) -> Any:
        held.append(sources._PARSING.locked())
        return parse(text)

    monkeypatch.setattr(ast, "parse", parsing)
    assert sources.fingerprint(Net) and held == [True] and not sources._PARSING.locked()


@pytest.mark.parametrize("error", [SystemError("AST constructor recursion depth mismatch"), RecursionError()])
def test_a_source_that_cannot_be_parsed_is_not_known(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(_: str) -> Any:
        raise error

    monkeypatch.setattr(ast, "parse", fail)
    assert sources.fingerprint(Net) == b""
