"""Handles that an owner gives out of another owner's objects: counted right wherever a stream breaks."""

from __future__ import annotations

import asyncio
import gc
import itertools

import pytest

import trainer_client as tc
from tests.conftest import StartProcess
from tests.hosted_models import add_there, made_elsewhere
from tests.integration.breaking import FAULTS, OWN_ACCORD, BreakAt, Found
from tests.integration.support import COUNTER, until
from tests.owner_groups import OwnerGroup
from trainer_client.transport.faulty import Fault, FaultyConnector, Plan
from trainer_client.transport.grpc_stream import GrpcConnector


async def job(address: str, plan: Plan) -> list[int]:
    """A trainer of ps1 that is handed a counter on ps0, uses it, hands it back, and lets go of it."""
    async with tc.connect(FaultyConnector(GrpcConnector(address), plan), shared_memory=False) as ps:
        rref = await ps.call(made_elsewhere, "ps0")
        counter = await ps.attach(str(rref))
        seen = [await counter.add(1), await ps.call(add_there, rref, 2)]
        # The parent is freed before the child, and an unused reference was never taken.
        del rref
        ignored = ps.call(made_elsewhere, "ps0")
        seen += [await counter.add(4), await ps.call(add_there, counter, 8)]
        del ignored, counter
        gc.collect()
        seen.append(await ps.call("tests.hosted_models.add_there", await ps.call(made_elsewhere, "ps0"), 1))
        return seen


async def nothing_is_held(watching: tc.Client) -> bool:
    """Looks until both owners have got everything back."""
    until = asyncio.get_running_loop().time() + 60
    while asyncio.get_running_loop().time() < until:
        first, second = await asyncio.gather(watching.status("ps0"), watching.status("ps1"))
        if not (first.references or second.references or first.borrowed or second.borrowed):
            return True
        await asyncio.sleep(0.01)
    return False


async def test_a_stream_may_break_at_any_packet(start_process: StartProcess) -> None:
    first = await start_process("--name", "ps0", "--directory", "self")
    second = await start_process("--name", "ps1", "--directory", first.address)
    async with tc.connect(first.address, second.address) as watching:
        found = Found()
        assert await job(second.address, found) == [4, 6, 10, 18, 4]
        for fault, place in itertools.product(FAULTS, found.places()):
            # Delivered and then broken is the hardest: both sides have something to hold. The others are sampled.
            if fault is not Fault.CUT_AFTER and (place.earlier or place.kind not in ("attach", "call", "release")):
                continue
            plan = BreakAt(fault, place)
            assert await job(second.address, plan) == [4, 6, 10, 18, 4], plan
            assert await nothing_is_held(watching), plan
            assert plan.hit or place.earlier or place.kind in OWN_ACCORD


async def test_a_trainer_that_is_gone_holds_nothing(start_process: StartProcess) -> None:
    first = await start_process("--name", "ps0", "--directory", "self", "--lease-seconds", "1")
    second = await start_process("--name", "ps1", "--directory", first.address, "--lease-seconds", "1")
    async with tc.connect(first.address, second.address) as watching:
        trainer = await tc.connect(second.address)
        held = [await trainer.call(made_elsewhere, "ps0") for _ in range(3)]
        assert (await watching.status("ps0")).references >= 3
        for session in trainer.sessions.values():
            await session._link.stop()  # as if its process had died: no goodbye
        assert held and await nothing_is_held(watching)
        await trainer.close()


async def test_an_answer_whose_handles_cannot_all_be_held_leaves_no_references() -> None:
    async with OwnerGroup() as group:
        await group.enter("ps0")
        there = await group.enter("ps1")
        async with tc.connect(there.server.address) as other, tc.connect(group.directory) as ps:
            far = await other.create(COUNTER, name="far")
            near = await ps.create(COUNTER)
            keeper = await ps.create(COUNTER, [near, await ps.attach(str(far))])
            assert [each.owner for each in await keeper.get()] == ["ps0", "ps1"]
            gc.collect()
            await until(ps, lambda status: status.references == 2)
            await other.delete(far)
            for _ in range(3):
                with pytest.raises(tc.errors.StaleHandleError):
                    await keeper.get()
            await until(ps, lambda status: status.references == 2)
            assert await near.add() == 1
