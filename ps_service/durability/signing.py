"""Signs the checkpoints of a data directory whose owner does not run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ps_service.durability import files
from ps_service.durability.keys import SignatureError
from ps_service.durability.log.chain import Chain
from ps_service.durability.log.disk import Disk
from ps_service.durability.log.segments import DamagedLogError, Segments
from ps_service.durability.manifest import NAME, SIGNATURE, DamagedError, Manifest
from ps_service.durability.store import CheckpointError, checkpoints_in, held_still, parsed

if TYPE_CHECKING:
    from pathlib import Path

    from ps_service.durability.keys import Keys


class Signed(NamedTuple):
    """A checkpoint, the name of its owner, and why it was not signed; empty if it was."""

    folder: Path
    owner: str = ""
    why: str = ""


def sign(folder: Path, keys: Keys) -> list[Signed]:
    """Signs all checkpoints that are whole, whoever wrote them, with the first key. Raises `CheckpointError`, and has
    signed nothing, if an owner uses the directory, or the log has records behind the newest that are not signed."""
    with held_still(folder):
        found = [_found(each) for each in checkpoints_in(folder)]
        whole = [each for each in found if not each.why]
        if not whole:
            raise CheckpointError(f"{folder} has no checkpoint that is whole")
        _check_log(folder, whole[0], keys)
        for each in whole:
            _sign(each.folder, keys)
        return found


def _found(folder: Path) -> Signed:
    try:
        return Signed(folder, Manifest.read(folder).owner)
    except (DamagedError, ValueError) as error:
        return Signed(folder, "", str(error))


def _check_log(folder: Path, newest: Signed, keys: Keys) -> None:
    checkpoint, chain = parsed(newest.folder), Chain(keys, newest.owner)
    chain.follow(checkpoint.code)
    try:
        for _ in Segments(folder, Disk(), chain=chain).records(checkpoint.position):
            pass
    except DamagedLogError as error:
        raise CheckpointError(str(error)) from error
    except SignatureError as error:
        raise CheckpointError(
            f"the log in {folder} has records behind {newest.folder.name} that are not signed with a key in "
            f"{keys.path}. If you trust them, start the owner once without a key file, and stop it in order"
        ) from error


def _sign(folder: Path, keys: Keys) -> None:
    growing = folder / f".{SIGNATURE}"
    growing.unlink(missing_ok=True)
    files.write_file(growing, keys.sign((folder / NAME).read_bytes()))
    os.replace(growing, folder / SIGNATURE)
    files.sync_folder(folder)
