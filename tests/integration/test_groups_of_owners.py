"""Trainers that are told a directory alone, and connect to all owners of its group."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from tests.owner_groups import OwnerGroup
from tests.ports import ReservedPort
from tests.ps_service.test_server import Heard
from tests.waiting import until
from trainer_client.session.session import Session
from trainer_client.tables.creation import Tables

COUNTER = "tests.hosted_models.Counter"
IDS = torch.arange(40)


@pytest.fixture
async def group() -> AsyncIterator[OwnerGroup]:
    """A group of two owners, of which the first keeps the directory."""
    async with OwnerGroup() as group:
        await group.enter("ps0")
        await group.enter("ps10")
        yield group


# Which owners


async def test_a_directory_alone_connects_to_all_owners_in_the_order_of_their_numbers(group: OwnerGroup) -> None:
    await group.enter("ps2")
    async with tc.connect(directory=group.directory) as ps:
        assert ps.owners == ["ps0", "ps10", "ps2"]
        assert (await ps.create(COUNTER, 1)).owner == "ps0"
        assert [(await ps.create(COUNTER, 1, owner=each)).owner for each in ps.owners] == ps.owners
        told = ", ".join(f"{name} at {group.agents[name].server.address}, connected" for name in ps.owners)
        assert repr(ps) == f"<Client of the group with its directory at {group.directory}: {told}>"


async def test_owners_that_join_later_come_last_for_all_trainers(group: OwnerGroup) -> None:
    async with tc.connect(directory=group.directory) as early:
        await group.enter("ps2")
        assert early.owners == ["ps0", "ps10"]
        async with tc.connect(directory=group.directory) as late:
            assert await early.find_owners() == early.owners == late.owners == ["ps0", "ps10", "ps2"]
        assert (await early.create(COUNTER, 1, owner="ps2")).owner == "ps2"
        assert await early.find_owners(3) == early.owners


async def test_programs_that_have_joined_by_themselves_are_no_owners(group: OwnerGroup) -> None:
    await group.enter("program", is_owner=False)
    await group.enter("ps2")
    async with tc.connect(directory=group.directory) as ps:
        assert ps.owners == ["ps0", "ps10", "ps2"]
        await ps.others.reach("program")
        assert await ps.find_owners() == ["ps0", "ps10", "ps2"]


async def test_any_owner_of_the_group_can_be_asked_for_all(group: OwnerGroup) -> None:
    async with tc.connect(directory=group.agents["ps10"].server.address) as ps:
        assert ps.owners == ["ps0", "ps10"]
        finding = ps.find_owners(3)
        await group.enter("ps2")
        assert await finding == ["ps0", "ps10", "ps2"]


async def test_an_owner_that_keeps_a_directory_and_has_not_entered_it_is_not_among_them(owner: Server) -> None:
    async with OwnerGroup(owner.address) as group:
        await group.enter("ps1")
        async with tc.connect(directory=owner.address) as ps:
            assert ps.owners == ["ps1"]
            assert (await ps.create(COUNTER, 1)).owner == "ps1"


async def test_enough_owners_are_waited_for(group: OwnerGroup) -> None:
    async with tc.connect(directory=group.directory) as ps:
        finding = ps.find_owners(4)
        directory = group.keeper.engine.directory
        await until(lambda: len(directory._waits) == 1)
        await group.enter("program", is_owner=False)
        await group.enter("ps2")
        assert not finding.done()
        await group.enter("ps3")
        assert await finding == ["ps0", "ps10", "ps2", "ps3"]
    await until(lambda: not directory._waits)


async def test_without_await_all_owners_are_found_too(group: OwnerGroup) -> None:
    def train() -> list[list[str]]:
        with tc.connect(directory=group.directory) as ps:
            return [list(ps.owners), ps.find_owners(2)]

    assert await asyncio.to_thread(train) == [["ps0", "ps10"]] * 2


# Owners that are not there


async def test_the_first_owner_is_waited_for(owner: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer_client.client.group._QUIET_SECONDS", 0.01)
    async with OwnerGroup(owner.address) as group:
        connecting = asyncio.ensure_future(tc.connect(directory=owner.address).__aenter__())
        async with Heard("trainer_client", lambda said: f"the directory at {owner.address} lists an owner" in said):
            await until(lambda: len(owner.engine.directory._waits) == 1)
        assert not connecting.done()
        await group.enter("ps1")
        ps = await connecting
        assert ps.owners == ["ps1"]
        await ps.close()


async def test_a_group_without_owners_is_an_error_that_says_how_to_start_one(owner: Server) -> None:
    with pytest.raises(tc.errors.UnavailableError) as caught:
        await tc.connect(directory=owner.address, connect_timeout=0.05)
    assert str(caught.value) == (
        f"an owner is wanted, and the group with its directory at {owner.address} has none after 0.05 s: start owners "
        f"with `ps-service serve --directory {owner.address}`, and the one that listens there with `--directory self`"
    )
    await until(lambda: len(owner.engine.sessions) == 0)


async def test_the_error_for_too_few_owners_names_those_that_are_there(group: OwnerGroup) -> None:
    await group.enter("program", is_owner=False)
    async with tc.connect(directory=group.directory, connect_timeout=0.05) as ps:
        with pytest.raises(
            tc.errors.UnavailableError, match=r"3 owners are wanted.* has 2 \(ps0, ps10\) after .*: program$"
        ):
            await ps.find_owners(3)
        assert ps.owners == ["ps0", "ps10"]


async def test_an_owner_that_cannot_be_reached_is_named(group: OwnerGroup) -> None:
    with ReservedPort() as port:
        session = group.keeper.engine.sessions.open(b"x" * 16)
        group.keeper.engine.directory.enter(session.trainer, "ps2", port.address, is_owner=True)
        with pytest.raises(
            tc.errors.UnavailableError, match=f"owner 'ps2' is in the group, but no owner .* at {port.address}"
        ):
            await tc.connect(directory=group.directory, connect_timeout=0.05)


async def test_an_owner_that_leaves_before_it_is_reached_is_left_out(group: OwnerGroup) -> None:
    directory = group.keeper.engine.directory
    with ReservedPort() as port:
        directory.enter(group.keeper.engine.sessions.open(b"x" * 16).trainer, "ps2", port.address, is_owner=True)
        connecting = asyncio.ensure_future(tc.connect(directory=group.directory, connect_timeout=0.5).__aenter__())
        # The trainer has reached that one, so it is on its way to the other.
        await until(lambda: len(group.agents["ps10"].engine.sessions) == 2)
        directory.leave(b"x" * 16)
        ps = await connecting
        assert ps.owners == ["ps0", "ps10"]
        await ps.close()


async def test_an_owner_that_has_left_is_forgotten_and_has_its_number_when_it_comes_back(group: OwnerGroup) -> None:
    await group.enter("ps2")
    async with tc.connect(directory=group.directory, reconnect_timeout=0.05) as ps:
        await group.agents["ps10"].leave(0.0)
        await until(lambda: ps.sessions["ps10"].state == "closed")
        assert await ps.find_owners() == ["ps0", "ps2"]
        await group.enter("ps3")
        await group.enter("ps10")
        assert await ps.find_owners() == ["ps0", "ps10", "ps2", "ps3"]
        assert (await ps.create(COUNTER, 1, owner="ps10")).owner == "ps10"


async def test_an_owner_that_was_started_again_at_another_address_is_connected_there(group: OwnerGroup) -> None:
    async with tc.connect(directory=group.directory) as ps:
        counter, before = await ps.create(COUNTER, 1, owner="ps10"), ps.sessions["ps10"].address
        await group.agents["ps10"].leave(0.0)
        await until(lambda: ps.sessions["ps10"].state == "disconnected")
        waits = counter.add(1)
        again = await group.enter("ps10")
        assert await ps.find_owners(2) == ["ps0", "ps10"]
        await until(lambda: ps.sessions["ps10"].state == "connected")
        assert ps.sessions["ps10"].address == again.server.address
        with pytest.raises(
            tc.errors.SessionLostError,
            match=f"it is at {again.server.address} now, and what it had at {before} has not gone along",
        ):
            await waits
        with pytest.raises(tc.errors.StaleHandleError):
            await counter.add(1)
        assert await (await ps.create(COUNTER, 1, owner="ps10")).add(1) == 2


async def test_a_wait_for_owners_goes_on_when_the_directory_begins_anew() -> None:
    async with OwnerGroup() as group:
        with ReservedPort() as port:
            before = await group.enter("keeper", listen=port.address)
            await group.enter("ps1")
            async with tc.connect(directory=port.address) as ps:
                finding = ps.find_owners(3)
                await until(lambda: len(before.engine.directory._waits) == 1)
                await before.server.stop()
                await group.enter("keeper", listen=port.address)
                await group.enter("ps2")
                assert sorted(await finding) == ["keeper", "ps1", "ps2"]


async def test_an_owner_that_a_directory_that_began_anew_does_not_know_yet_stays(group: OwnerGroup) -> None:
    await group.enter("ps2")
    async with tc.connect(directory=group.directory) as ps:
        directory = group.keeper.engine.directory
        directory.leave(group.agents["ps10"].client.trainer)
        assert directory.find("ps10") is None
        assert await ps.find_owners() == ["ps0", "ps10", "ps2"]


async def test_a_directory_that_began_anew_and_was_given_up_is_asked_again() -> None:
    async with OwnerGroup() as group:
        with ReservedPort() as port:
            await group.enter("keeper", listen=port.address)
            await group.enter("ps1")
            async with tc.connect(directory=port.address, reconnect_timeout=0.05) as ps:
                await group.keeper.server.stop()
                await until(lambda: ps.sessions["keeper"].state == "closed")
                again = await group.enter("keeper", listen=port.address)
                await asyncio.wrap_future(again.engine.directory.awaited("ps1").future)
                await group.enter("ps2")
                assert await ps.find_owners() == ["keeper", "ps1", "ps2"]


async def test_a_session_that_is_opened_anew_continues_nothing_of_one_that_was_given_up(group: OwnerGroup) -> None:
    async with tc.connect(directory=group.directory) as ps:
        await ps.create(COUNTER, 1)
        await ps.sessions["ps0"].give_up(tc.errors.UnavailableError("the network was out for too long"))
        assert await ps.find_owners() == ["ps0", "ps10"]
        assert await (await ps.create(COUNTER, 5)).add(1) == 6
        assert len(group.keeper.engine.registry) == 1


async def test_an_owner_that_has_refused_the_trainer_is_connected_again(
    group: OwnerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise tc.errors.UnauthenticatedError("its token was renewed too late")

    async with tc.connect(directory=group.directory) as ps:
        servicer = group.agents["ps10"].server.servicer
        with monkeypatch.context() as patch:
            patch.setattr(servicer._greeting, "_check", refuse)
            servicer.session_handlers.open(ps.trainer).stream.greeted()
            await until(lambda: ps.sessions["ps10"].state == "closed")
        assert await ps.find_owners() == ["ps0", "ps10"]
        assert await (await ps.create(COUNTER, 1, owner="ps10")).add(1) == 2


# What is refused


async def test_an_unknown_owner_is_refused_with_the_call_that_finds_new_ones(group: OwnerGroup) -> None:
    async with tc.connect(directory=group.directory) as ps:
        with pytest.raises(tc.errors.UnknownNameError, match=r"'ps2', only to ps0, ps10 \(ps.find_owners\(\) connects"):
            ps.create(COUNTER, 1, owner="ps2")


async def test_a_client_that_was_told_its_owners_finds_no_others(group: OwnerGroup, owner: Server) -> None:
    for connecting in (tc.connect(owner.address), tc.connect("ps10", directory=group.directory)):
        async with connecting as ps:
            with pytest.raises(tc.errors.InvalidArgumentError, match="was told which owners to connect to"):
                ps.find_owners()


def test_a_name_in_the_place_of_the_directory_is_refused_at_once() -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match=r"'ps0' is not the address .* as in 'ps0:50051'$"):
        tc.connect(directory="ps0")


@pytest.mark.parametrize("wrong", [0, -1, True, "ps2", 1.5])
async def test_a_number_of_owners_is_from_one(group: OwnerGroup, wrong: object) -> None:
    async with tc.connect(directory=group.directory) as ps:
        with pytest.raises(tc.errors.InvalidArgumentError, match="at_least= is a number of owners from 1"):
            await ps.find_owners(wrong)  # type: ignore[arg-type]


# Tables


async def _train(ps: tc.Client, table: tc.Table) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await table(IDS)).sum(), step=[table.optimizer])


async def test_a_new_table_is_on_the_owners_that_are_known_or_on_those_that_are_named(group: OwnerGroup) -> None:
    async with tc.connect(directory=group.directory) as ps:
        before = await ps.table("before", 2)
        await group.enter("ps2")
        unasked = await ps.table("unasked", 2)
        named = await ps.table("named", 2, owners=["ps2", "ps0"])
        after = await ps.table("after", 2)
        assert [sorted(each.shards) for each in (before, unasked, named, after)] == [
            ["ps0", "ps10"],
            ["ps0", "ps10"],
            ["ps0", "ps2"],
            ["ps0", "ps10", "ps2"],
        ]
        for each in (before, named, after):
            await _train(ps, each)
        with pytest.raises(tc.errors.UnknownNameError, match="not connected to an owner 'ps9', only to ps0, ps10, ps2"):
            await ps.table("lost", 2, owners=["ps0", "ps9"])


@pytest.mark.parametrize("replace", [False, True])
async def test_a_trainer_that_knows_more_owners_attaches_to_the_table_as_it_is(
    group: OwnerGroup, replace: bool
) -> None:
    async with tc.connect(directory=group.directory) as early:
        table = await early.table("users", 2, init=tc.tables.Zeros())
        await _train(early, table)
        await group.enter("ps2")
        async with tc.connect(directory=group.directory) as late:
            same = await late.table("users", 2, init=tc.tables.Zeros(), replace=replace)
            assert sorted(same.shards) == ["ps0", "ps10"]
            assert torch.equal(await same(IDS), await table(IDS))
            with pytest.raises(tc.errors.NameConflictError, match=r"with dim=2, not 3\."):
                await late.table("users", 3, init=tc.tables.Zeros())
            other = await late.table("users", 3, init=tc.tables.Zeros(), replace=True)
            assert sorted(other.shards) == ["ps0", "ps10", "ps2"]


async def test_a_trainer_that_knows_fewer_owners_finds_those_of_a_table(group: OwnerGroup) -> None:
    async with tc.connect(directory=group.directory) as early:
        await group.enter("ps2")
        async with tc.connect(directory=group.directory) as late:
            table = await late.table("users", 2)
            same = [await early.table("users"), await early.table("users", 2)]
            assert [sorted(each.shards) for each in same] == [sorted(table.shards)] * 2 == [["ps0", "ps10", "ps2"]] * 2
            await group.enter("ps3")
            await late.find_owners()
            await late.table("items", 2)
        await early.delete("items")
        assert early.owners == ["ps0", "ps10", "ps2", "ps3"]


async def test_of_trainers_that_know_different_owners_the_first_decides_where_a_table_is(
    group: OwnerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made, refused = Tables._shard, defaultdict(asyncio.Event), []

    async with tc.connect(directory=group.directory) as early:
        await group.enter("ps2")
        async with tc.connect(directory=group.directory) as late:

            async def shard(tables: Tables, session: Session, *args: Any) -> Any:
                # Each is the first on one of the owners that both know, if they do not take turns.
                trainer = "early" if session.trainer == early.trainer else "late"
                if (after := {"earlyps10": "lateps10", "lateps0": "earlyps0"}.get(trainer + session.owner)) is not None:
                    await made[after].wait()
                try:
                    return await make(tables, session, *args)
                except tc.errors.NameConflictError:
                    refused.append((trainer, session.owner))
                    raise
                finally:
                    made[trainer + session.owner].set()

            monkeypatch.setattr(Tables, "_shard", shard)
            both = await asyncio.gather(early.table("users", 2), late.table("users", 2))
            assert [sorted(each.shards) for each in both] == [["ps0", "ps10"]] * 2
            assert set(refused) <= {("late", "ps0")}, "it may have heard of the table before it made its part"


async def test_a_table_goes_on_where_it_was_after_an_owner_has_lost_its_rows(group: OwnerGroup) -> None:
    async with tc.connect(directory=group.directory) as ps:
        await ps.table("users", 2)
        await group.enter("ps2")
        await ps.find_owners()
        # As when that owner has started anew.
        group.keeper.engine.registry.delete("users")
        assert sorted((await ps.table("users", 2)).shards) == ["ps0", "ps10"]
