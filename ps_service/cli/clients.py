"""Clients of commands that work with several owners."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import typer

import trainer_client
from ps_service.cli import probe
from ps_wire.errors import UnavailableError
from ps_wire.numbers import LONGEST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.cli.options import OwnersTLS
    from trainer_client.client.client import Client


_PAUSE: Final = 0.5
"""Seconds before owners that are not there are tried again."""


async def connected_once_there(address: str, beside: Sequence[str], tls: OwnersTLS) -> Client:
    """As `connected`, once the owners are there; says that it waits. They may be away later for as long as it takes."""
    is_told = False
    while True:
        try:
            return await connected(address, beside, tls, LONGEST_SECONDS)
        except UnavailableError as error:
            if not is_told:
                typer.secho(f"ps-service: {error}; trying again until one does", err=True)
            is_told = True
        await asyncio.sleep(_PAUSE)


async def connected(address: str, beside: Sequence[str], tls: OwnersTLS, reconnect_timeout: float = 60.0) -> Client:
    """A client of all owners of the group of an owner, or of the owners that are given."""
    status = await asyncio.to_thread(probe.status, address, tls=tls)
    directory = address if status.members else status.directory
    if directory and not beside:
        return await trainer_client.connect(directory=directory, reconnect_timeout=reconnect_timeout, tls=tls)
    return await trainer_client.connect(address, *beside, reconnect_timeout=reconnect_timeout, tls=tls)
