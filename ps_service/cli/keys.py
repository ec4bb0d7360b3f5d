"""The commands `ps-service checkpoint-key` and `ps-service sign`, and the option of those that read what is signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ps_service.cli.ending import fail
from ps_service.durability import keys, signing
from ps_service.durability.keys import KeyFileError, Keys

KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint-key-file", envvar="PS_CHECKPOINT_KEY_FILE", help="Read only what a key in this file has signed."
    ),
]


def keys_in(file: Path | None) -> Keys | None:
    """The keys in a file, if there is one. Ends the program if it cannot be used."""
    try:
        return None if file is None else Keys.read(file)
    except KeyFileError as error:
        fail(str(error))


def checkpoint_key(file: Annotated[Path, typer.Argument(help="The file of keys.")]) -> None:
    """Makes a key that signs checkpoints and logs, in a new file; or puts one before those of a file that is there.

        ps-service checkpoint-key ps0.keys
        ps-service serve --name ps0 --data-dir data/ps0 --checkpoint-key-file ps0.keys

    The first key of a file signs, and what any of them has signed is loaded. So to replace a key: put another one
    before it, restart the owner, and take the old one out once no checkpoint is left that it has signed; or sign them
    anew with `ps-service sign`. Keep the file where nobody can write who can write to the data directory.
    """
    try:
        name = keys.make(file)
    except (KeyFileError, OSError) as error:
        fail(str(error))
    print(f"{file} signs with the key {name}")


def sign(
    folder: Annotated[Path, typer.Argument(help="The data directory of an owner, which does not run.")],
    file: KeyFile = None,
) -> None:
    """Signs the checkpoints of a data directory as they are, with the first key of --checkpoint-key-file.

    From then on an owner with these keys loads them. Be sure that nobody has changed them: look at them with
    `ps-service inspect` first. The exit code is 1 if one is damaged, and was not signed.
    """
    found_keys = keys_in(file)
    if found_keys is None:
        fail("give --checkpoint-key-file; `ps-service checkpoint-key FILE` makes one")
    try:
        found = signing.sign(folder, found_keys)
    except OSError as error:
        fail(str(error))
    for each in found:
        print(each.why or f"{each.folder} of {each.owner} is signed")
    if any(each.why for each in found):
        raise typer.Exit(1)
