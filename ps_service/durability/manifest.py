"""The manifest of a checkpoint: its files with a hash of each, and a hash of itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ps_service.durability.keys import SignatureError
from ps_wire.regular_files import NotRegularError, open_regular

if TYPE_CHECKING:
    from ps_service.durability.keys import Keys

NAME: Final = "manifest.json"
SIGNATURE: Final = "manifest.sig"
"""The file with the signature of the manifest, if its owner has a key."""

FORMAT: Final = 1
"""Changes when an older release could misread a checkpoint."""


class DamagedError(ValueError):
    """A checkpoint's files differ from what was written."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes a checkpoint of an owner: when, in ISO 8601, and by which release it was written.

    `incarnations` are those that this state continues, newest first. `files` has length and hash of each file, by name.
    `objects` and `left_out`, the objects that could not be saved and why, are for people to read.
    """

    owner: str
    incarnations: tuple[str, ...]
    written: str
    version: str
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    objects: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """The manifest as the bytes of its file."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps({"blake2b": _digest(content), **content}, indent=2).encode()

    @classmethod
    def read(cls, folder: Path, verify: bool = True, keys: Keys | None = None) -> Manifest:
        """Reads the manifest of a checkpoint, and verifies its files. Raises `DamagedError` if one is not whole, and
        with `keys` a `SignatureError` if none of them has signed it.

        A `ValueError` says that another release wrote it, in a format that this one cannot read.
        """
        manifest = cls._parse(folder, keys)
        for name, expected in manifest.files.items() if verify else ():
            try:
                whole = described(folder / name) == expected
            except NotRegularError as error:
                raise DamagedError(str(error)) from None
            if not whole:
                raise DamagedError(f"{folder / name} is damaged or missing")
        return manifest

    @classmethod
    def _parse(cls, folder: Path, keys: Keys | None) -> Manifest:
        try:
            with open_regular(folder / NAME) as file:
                written = file.read()
            if keys is not None:
                _check_signature(folder, written, keys)
            content = json.loads(written)
            digest = content.pop("blake2b")
            whole = digest == _digest(content)
        except NotRegularError as error:
            raise DamagedError(str(error)) from None
        except SignatureError:
            raise
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            whole = False
        if not whole:
            raise DamagedError(f"{folder / NAME} is damaged or missing")
        format = content.pop("format", None)
        if format != FORMAT:
            raise ValueError(
                f"{folder} was written by release {content.get('version')}, in format {format}; this release reads "
                f"format {FORMAT}. Start that release, or another data directory"
            )
        if not _has_its_form(content):
            raise DamagedError(f"{folder / NAME} does not say what a manifest says")
        return cls(**content | {"incarnations": tuple(content["incarnations"])})


def _has_its_form(content: dict[str, Any]) -> bool:
    """Whether what stands in a manifest has the fields and types of one. Its hash is right, and may have been put
    right."""
    if content.keys() != {each.name for each in fields(Manifest)}:
        return False
    texts = [*(content[name] for name in ("owner", "written", "version"))]
    if not isinstance(content["incarnations"], list) or not isinstance(content["files"], dict):
        return False
    if not all(isinstance(each, str) for each in (*texts, *content["incarnations"])):
        return False
    for name, file in content["files"].items():
        if not name or "/" in name or not isinstance(file, dict) or file.keys() != {"bytes", "blake2b"}:
            return False
        if type(file["bytes"]) is not int or file["bytes"] < 0 or not isinstance(file["blake2b"], str):
            return False
    for listed in (content["objects"], content["left_out"]):
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            return False
    if not all(isinstance(each.get(name), str) for each in content["left_out"] for name in ("class", "name", "why")):
        return False
    try:
        return datetime.fromisoformat(content["written"]).tzinfo is not None
    except ValueError:
        return False


def described(path: Path) -> dict[str, Any] | None:
    """Length and hash of a file; None if it cannot be read. Raises `NotRegularError` for a FIFO or a directory."""
    try:
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, hashlib.blake2b).hexdigest()
        return {"bytes": path.stat().st_size, "blake2b": digest}
    except NotRegularError:
        raise
    except OSError:
        return None


def _check_signature(folder: Path, written: bytes, keys: Keys) -> None:
    try:
        with open_regular(folder / SIGNATURE) as file:
            why = keys.check(written, file.read())
    except FileNotFoundError:
        why = "it is not signed"
    if why:
        raise SignatureError(
            f"{folder} is not loaded: {why}. If you trust what is there, sign it: `ps-service sign {folder.parent}`; "
            "otherwise restore the directory from a backup that you trust"
        )


def _digest(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=32).hexdigest()
