"""The commands that build states from data directories of owners that do not run."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ps_service import config
from ps_service.cli.ending import fail, reading
from ps_service.cli.keys import KeyFile, keys_in
from ps_service.durability.store import APART_SECONDS, CheckpointError
from ps_wire.errors import PsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.durability.keys import Keys
    from ps_service.durability.point_in_time import BuiltState
    from ps_service.engine import Engine


def replay(
    folder: Annotated[Path, typer.Argument(help="The data directory of an owner, which does not run.")],
    output: Annotated[Path, typer.Option(help="A folder, which becomes a data directory.")],
    until: Annotated[
        list[str] | None,
        typer.Option(help="A version of the only optimizer; or NAME=VERSION, also of several. [default: the latest]"),
    ] = None,
    position: Annotated[int | None, typer.Option(min=0, help="Or a position of the log.")] = None,
    imports: Annotated[
        list[str] | None, typer.Option("--import", help="Modules of hosted classes, as for ps-service serve.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--config", help="The TOML file that the owner is started with.")] = None,
    key_file: KeyFile = None,
) -> None:
    """Builds the state that an owner had at an earlier version, bit by bit, from its last checkpoints and its log.

    Nothing in its data directory is changed. The named objects are written as a checkpoint, whose tensors are files in
    the format safetensors. An owner of the same name can start from it, and `ps-service inspect` shows it.

        ps-service replay data/ps0 --until net.optimizer=120 --output data/at120 --import my_models
    """
    from ps_service.cli import replay_view
    from ps_service.durability import point_in_time

    try:
        moment = replay_view.moment(until or (), position)
        keys = _keys(file, key_file)
        replay_view.show(point_in_time.build(folder, moment, output, partial(_engine, file, imports), keys), output)
    except (CheckpointError, ImportError, PsError) as error:
        fail(str(error))


def restore(
    given: Annotated[
        list[Path],
        typer.Option("--from", help="The data directory of an owner, or a checkpoint in it; once for each owner."),
    ],
    owners: Annotated[str, typer.Option(help="How many owners there are to be, or their names: ps0,ps1,ps2.")],
    to: Annotated[Path, typer.Option(help="A folder. Each new owner gets a data directory of its name there.")],
    objects: Annotated[
        list[str] | None, typer.Option(help="OLD=NEW: who gets what owner OLD has beside tables. Otherwise it stays.")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option(help="TABLE=NAME,NAME: the owners of a table. Otherwise all, if it was on all.")
    ] = None,
    apart: Annotated[float, typer.Option(help="Most seconds between the times of the checkpoints.")] = APART_SECONDS,
    imports: Annotated[list[str] | None, typer.Option("--import", help="As for serve, if owners have logs.")] = None,
    file: Annotated[Path | None, typer.Option("--config", help="A TOML file, as for serve, if they have.")] = None,
    key_file: KeyFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, and write nothing.")] = False,
) -> None:
    """Divides the rows of tables anew: reads the checkpoints of some owners, and writes those of as many as wanted.

    Stop all owners first, together. Rows go with all that optimizers and eviction keep for them, so training goes on
    with the same values; trainers connect anew. Other objects stay with the owner of their name. What was read is not
    changed, and everything is checked before anything is written. What an owner that was killed has in its log since
    its checkpoint is applied first, in a temporary folder. So give the data directory where there is a log: a
    checkpoint that was written while something changed is refused by its own folder.

        ps-service restore --from data/ps0 --from data/ps1 --owners 3 --to data/three
    """
    from ps_service.cli import restore_view
    from ps_service.durability.resharding.reshard import reshard

    try:
        wanted = restore_view.wanted(owners, objects or (), table or ())
        keys = _keys(file, key_file)
        rebuild = partial(_rebuilt, file, imports, keys)
        result = reshard(given, to, wanted, dry_run=dry_run, apart=apart, rebuild=rebuild, keys=keys)
    except (CheckpointError, ImportError, PsError) as error:
        fail(str(error))
    restore_view.show(result)


def _engine(file: Path | None, imports: Sequence[str] | None, name: str, data_dir: Path) -> Engine:
    """An owner that a state is built in. Raises `ImportError`."""
    from ps_service.cli.engines import engine_of

    sys.path.insert(0, os.getcwd())
    with reading("the configuration"):
        settings = config.load(file, name=name, imports=imports, data_dir=data_dir)
    return engine_of(settings)


def _rebuilt(
    file: Path | None, imports: Sequence[str] | None, keys: Keys | None, folder: Path, output: Path
) -> BuiltState:
    """Builds the latest state of an owner, as `replay` does."""
    from ps_service.durability import point_in_time

    return point_in_time.build_held(folder, point_in_time.Moment(), output, partial(_engine, file, imports), keys)


def _keys(file: Path | None, key_file: Path | None) -> Keys | None:
    """The keys in a file, or in the one that a configuration names."""
    with reading("the configuration"):
        return keys_in(key_file or config.load(file).checkpoint_key_file)
