"""The keys that sign checkpoints are in a file that only its user reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps_service.durability.keys import KeyFileError, Keys, make


def test_a_file_has_the_newest_key_first_and_all_of_them_count(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first = make(path)
    assert path.stat().st_mode & 0o777 == 0o600
    before = Keys.read(path)
    second = make(path)
    after = Keys.read(path)
    assert len({first, second}) == 2 and path.read_text().index(second) < path.read_text().index(first)
    assert after.check(b"content", before.sign(b"content")) == ""
    assert f"the key {second}, which is not in" in before.check(b"content", after.sign(b"content"))
    assert after.signer(before.code(b"a", b"b"), b"ab") == 1
    assert after.signer(after.code(b"ab"), b"ab") == 0
    assert after.signer(after.code(b"ab"), b"ac") is None


@pytest.mark.parametrize(
    ("signature", "why"),
    [
        (b"", "cannot be read"),
        (b"\xff \xff \xff", "cannot be read"),
        (b"hmac-sha256 {id} 00", "somebody has changed it"),
    ],
)
def test_what_is_no_signature_is_told(tmp_path: Path, signature: bytes, why: str) -> None:
    name = make(tmp_path / "keys")
    keys = Keys.read(tmp_path / "keys")
    assert why in keys.check(b"content", signature.replace(b"{id}", name.encode()))
    assert "somebody has changed it" in keys.check(b"other content", keys.sign(b"content"))


@pytest.mark.parametrize("content", [b"", b"# none\n", b"00" * 31, b"00" * 32 + b" x", b"\xff" * 32, b"key\n"])
def test_a_file_that_holds_no_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="64 hexadecimal digits"):
        Keys.read(path)
    with pytest.raises(KeyFileError, match="64 hexadecimal digits"):
        make(path)
    assert path.read_bytes() == content


def test_a_file_that_others_may_read_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with pytest.raises(KeyFileError, match=r"`ps-service checkpoint-key .*keys` makes one"):
        Keys.read(path)
    with pytest.raises(KeyFileError, match="is a directory"):
        Keys.read(tmp_path)
    make(path)
    path.chmod(0o640)
    Keys.read(path)
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod o="):
        Keys.read(path)
