"""Tests that any owner of a group leads to all of them."""

from __future__ import annotations

import asyncio

from ps_service.cli import probe
from ps_service.server import Server
from tests.conftest import StartProcess


async def test_all_owners_of_a_group_are_asked_also_if_one_is_gone(start_process: StartProcess) -> None:
    first = await start_process("--name", "ps0", "--directory", "self", "--lease-seconds", "300")
    second = await start_process("--name", "ps1", "--directory", first.address)
    for address in (first.address, second.address):
        found = await asyncio.to_thread(probe.group, address, 60.0, events=5)
        assert [each.owner for each in found.owners] == ["ps0", "ps1"] and not found.missing
        assert [each.directory for each in found.owners] == ["", first.address]
        assert all(each.events for each in found.owners)
    # The other owner is a trainer of the directory, too, with its name.
    assert "ps1" in [each.name for each in found.owners[0].trainers]
    second.process.kill()
    await second.process.wait()
    found = await asyncio.to_thread(probe.group, first.address, 60.0)
    assert [each.owner for each in found.owners] == ["ps0"]
    (gone,) = found.missing
    assert (gone.name, gone.address) == ("ps1", second.address) and "no owner answers" in gone.why


async def test_an_owner_without_a_group_stands_alone(owner: Server) -> None:
    found = await asyncio.to_thread(probe.group, owner.address, 60.0)
    assert [each.owner for each in found.owners] == ["ps0"] and not found.missing
