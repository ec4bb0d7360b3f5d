"""The command `ps-service export`: tables and modules as files that others read, version after version."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ps_service.cli.clients import connected, connected_once_there
from ps_service.cli.ending import asking, fail
from ps_service.cli.options import OwnersTLS, first_of, with_tls
from ps_wire.errors import CancelledCallError, PsError

if TYPE_CHECKING:
    from ps_reader.layout import Manifest
    from ps_wire.compression.codec import Codec

_DEFAULT_ADDRESS: Final = "127.0.0.1:50051"


class Rounding(StrEnum):
    """How rows are rounded on their way."""

    NONE = "none"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"


@with_tls
def export(
    folder: Annotated[Path, typer.Argument(help="A folder of its own, which is made.")],
    address: Annotated[
        str,
        typer.Argument(
            help="Where an owner listens; those of its group are found by it.", envvar="PS_ADDRESS", callback=first_of
        ),
    ] = _DEFAULT_ADDRESS,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what changes, until it is ended.")] = False,
    every: Annotated[float, typer.Option(min=0.01, help="Seconds from one version to the next.")] = 2.0,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Name of a table; once for each. [default: all]")
    ] = None,
    module: Annotated[
        list[str] | None, typer.Option("--module", help="Name of a module; once for each. [default: all]")
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="How many versions are kept.")] = 3,
    rounding: Annotated[
        Rounding, typer.Option("--round", help="How rows are rounded on their way from the owners.")
    ] = Rounding.NONE,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write each part of a table as Parquet, too. Needs pyarrow.")
    ] = False,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", help="Name of a snapshot to write, in the place of what there is now.")
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option("--beside", help="Where another owner listens, without a group; once for each."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no line for each version.")] = False,
    tls: OwnersTLS = None,
) -> None:
    """Writes tables and modules into a folder that programs read without torch, with ps_reader.

        ps-service export served --follow 127.0.0.1:50051

    The first version has all rows, and later ones what has changed since. Started again, it goes on from the newest
    version in the folder. With --follow it waits for owners that are not there. Ctrl-C and SIGTERM end it.
    """
    codec = _codec(rounding)
    told = (lambda _: None) if quiet else _tell

    async def exported() -> None:
        ps = await (connected_once_there if follow else connected)(address, beside or [], tls)
        try:
            going_on = ps.export(
                folder,
                tables=table,
                modules=module,
                follow=follow,
                every=every,
                keep=keep,
                compress=codec,
                parquet=parquet,
                snapshot=snapshot,
                when_written=told,
            )
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGINT, signal.SIGTERM):
                    asyncio.get_running_loop().add_signal_handler(number, going_on.cancel)
            with suppress(CancelledCallError):
                await going_on
        finally:
            await ps.close()

    with asking():
        try:
            asyncio.run(exported())
        except OSError as error:
            if isinstance(error, PsError):
                raise
            fail(f"{folder} cannot be written: {error}", 1)


def _codec(rounding: Rounding) -> Codec | None:
    from ps_wire.compression.registry import codec_named

    return None if rounding is Rounding.NONE else codec_named(rounding.value)


def _tell(manifest: Manifest) -> None:
    rows = sum(each.rows for each in manifest.tables.values())
    late = time.time() - manifest.as_of
    what = f"{len(manifest.tables)} tables with {rows:,} rows, {len(manifest.modules)} modules"
    print(f"version {manifest.version}: {what}; written {late:.2f} s after the owners were asked", flush=True)
