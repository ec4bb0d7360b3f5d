"""The command `ps-service inspect`, which needs neither torch nor gRPC."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ps_service.cli import inspect_view
from ps_service.cli.ending import fail
from ps_service.cli.keys import KeyFile, keys_in
from ps_service.durability import inspection
from ps_service.durability.log_inspection import inspect_log


def inspect(
    folder: Annotated[Path, typer.Argument(help="The data directory of an owner.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    key_file: KeyFile = None,
) -> None:
    """Says what a data directory holds: checkpoints, the log, whether every hash is right, and the newest objects.

    The owner may run meanwhile. Nothing is changed and no object is made, so modules of hosted classes are not needed.
    The exit code is 1 if no checkpoint is whole, or the log is damaged; with --checkpoint-key-file also if they are not
    signed.
    """
    keys = keys_in(key_file)
    try:
        found = inspection.inspect(folder, keys)
        log = inspect_log(folder, found, keys)
    except OSError as error:
        fail(str(error))
    if as_json:
        print(json.dumps(inspect_view.as_json(found, log), indent=2))
    else:
        inspect_view.show(folder, found, log)
    if (found and all(each.damage for each in found)) or (log.damage if log is not None else not found):
        raise typer.Exit(1)


alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
"""The command by itself."""

alone.command()(inspect)
