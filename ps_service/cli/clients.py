"""Clients of commands that work with several owners."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import trainer_client
from ps_service.cli import probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ps_service.cli.options import OwnersTLS
    from trainer_client.client.client import Client


async def connected(address: str, beside: Sequence[str], tls: OwnersTLS) -> Client:
    """A client of all owners of the group of an owner, or of the owners that are given."""
    status = await asyncio.to_thread(probe.status, address, tls=tls)
    directory = address if status.members else status.directory
    if directory and not beside:
        return await trainer_client.connect(directory=directory, tls=tls)
    return await trainer_client.connect(address, *beside, tls=tls)
