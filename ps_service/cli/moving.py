"""The commands `ps-service rebalance` and `ps-service drain`: rows of tables, and objects, move to other owners."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ps_service.cli import probe
from ps_service.cli.clients import connected
from ps_service.cli.ending import asking
from ps_service.cli.options import OwnersTLS, first_of, with_tls
from trainer_client.pauses import PATIENCE_SECONDS, PAUSE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from trainer_client.client.client import Client
    from trainer_client.handles.object_moves import MovedObjects
    from trainer_client.tables.moves import Moved

    _Move = Callable[[Client], Awaitable[Sequence[Moved | MovedObjects]]]

_Address = Annotated[
    str,
    typer.Argument(
        help="Where an owner listens; those of its group are found by it.", envvar="PS_ADDRESS", callback=first_of
    ),
]
_Beside = Annotated[
    list[str] | None, typer.Option("--beside", help="Where another owner listens, without a group; once for each.")
]
_Table = Annotated[list[str] | None, typer.Option("--table", help="Name of a table; once for each. [default: all]")]
_Pause = Annotated[float, typer.Option(min=0.01, max=10.0, help="Most seconds for which requests wait, at each move.")]
_Patience = Annotated[float, typer.Option(min=0.0, help="Most seconds to look for a moment without open passes.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_DEFAULT_ADDRESS: Final = "127.0.0.1:50051"


@with_tls
def rebalance(
    address: _Address = _DEFAULT_ADDRESS,
    owners: Annotated[
        str | None, typer.Option(help="Names of the owners that get all slots: ps0,ps1. [default: all of the group]")
    ] = None,
    table: _Table = None,
    beside: _Beside = None,
    pause: _Pause = PAUSE_SECONDS,
    patience: _Patience = PATIENCE_SECONDS,
    as_json: _Json = False,
    tls: OwnersTLS = None,
) -> None:
    """Spreads the rows of tables evenly over the owners of a group, while trainers train.

    Start a new owner with the --directory of the group, and then:

        ps-service rebalance 127.0.0.1:50051

    Rows are copied in the background, through this process; then look-ups wait for a moment, and trainers go on with
    the new owner by themselves. Ended in the middle, it may be started again. The exit code is 1 if a move was not
    possible.
    """
    names = None if owners is None else _names(owners)
    _run(address, beside, tls, lambda ps: ps.rebalance(table or None, names, pause=pause, patience=patience), as_json)


@with_tls
def drain(
    address: Annotated[
        str,
        typer.Argument(help="Where the owner listens that is to have nothing.", envvar="PS_ADDRESS", callback=first_of),
    ] = _DEFAULT_ADDRESS,
    to: Annotated[
        str | None, typer.Option(help="Names of the owners that get what it has: ps1,ps2. [default: all others]")
    ] = None,
    table: _Table = None,
    beside: _Beside = None,
    pause: _Pause = PAUSE_SECONDS,
    patience: _Patience = PATIENCE_SECONDS,
    as_json: _Json = False,
    tls: OwnersTLS = None,
) -> None:
    """Moves rows of tables and named objects from an owner to others of its group, while trainers train.

        ps-service drain 127.0.0.1:50051 --to ps1

    Afterwards the owner has nothing that has a name, and may be stopped for good. With --table only rows move. The exit
    code is 1 if something could not move; all else has moved then.
    """
    targets = None if to is None else _names(to)
    with asking():
        name = probe.status(address, tls=tls).owner
    _run(
        address, beside, tls, lambda ps: ps.drain(name, targets, table or None, pause=pause, patience=patience), as_json
    )


def _run(address: str, beside: list[str] | None, tls: OwnersTLS, move: _Move, as_json: bool) -> None:
    async def moved() -> Sequence[Moved | MovedObjects]:
        ps = await connected(address, beside or [], tls)
        try:
            return await move(ps)
        finally:
            await ps.close()

    with asking():
        made = asyncio.run(moved())
    if as_json:
        print(json.dumps([each._asdict() for each in made], indent=2))
        return
    from trainer_client.handles.object_moves import MovedObjects

    for each in made:
        if isinstance(each, MovedObjects):
            what = f"{', '.join(each.names)}: {each.bytes:,} bytes from {each.source} to {each.target}"
            print(f"{what}; requests waited for {each.pause:.3f} s")
            continue
        print(
            f"{each.table}: {each.slots:,} slots with {each.rows:,} rows from {each.source} to {each.target}; "
            f"look-ups waited for {each.pause:.3f} s"
        )
    if not made:
        print("nothing had to move")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
