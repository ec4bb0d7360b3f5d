"""Tests that a file is read again when it has changed, and that what it had stays while it is not valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps_service.access.reread import Reread
from ps_service.access.token_file import TokenFile
from ps_wire.errors import InvalidArgumentError


def test_what_a_file_had_stays_while_it_is_not_valid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = TokenFile(tmp_path / "tokens")
    with pytest.raises(InvalidArgumentError):
        Reread(file, "tokens")
    file.add("anna", ("reader",))
    known = Reread(file, "tokens")
    assert not known.look()
    file.add("bert", ("admin",))
    assert known.look() and [each.name for each in known.content] == ["anna", "bert"]
    before = file.path.read_text()
    for text in ("{", None):
        file.path.unlink()
        if text is not None:
            file.path.write_text(text)
        caplog.clear()
        assert not known.look() and not known.look()
        assert [each.name for each in known.content] == ["anna", "bert"]
        assert len(caplog.records) == 1 and "the tokens that were read before stay: " in caplog.text
        file.path.write_text(before)
        assert known.look()
