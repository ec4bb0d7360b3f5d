"""An owner whose data directory is put back to an earlier copy: trainers of several owners, and all logs, are told."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import trainer_client as tc
from tests.integration.restarting import Owner
from tests.integration.spanning import Trainer, batches, begun

NAMES = ("ps0", "ps1")
P = tc.policies
X, Y = batches(2)


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[list[Owner]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Owner(tmp_path / name, name, durability="always")) for name in NAMES]


def connected(owners: list[Owner]) -> tc.Connecting:
    return tc.connect(*(each.address for each in owners))


async def put_back(owner: Owner, copy: Path | None) -> None:
    await owner.server.stop()
    shutil.rmtree(owner.folder)
    if copy is not None:
        shutil.copytree(copy, owner.folder)
    await owner.start()


async def steps(trainer: Trainer, count: int) -> None:
    for _ in range(count):
        await trainer.step(X)


def lines(owner: Owner) -> list[str]:
    return [each.text for each in owner.server.engine.events.latest() if each.kind == "gone_back"]


async def stepped_with_a_copy_between(owners: list[Owner], trainer: Trainer, which: int, copy: Path) -> None:
    await steps(trainer, 3)
    await owners[which].server.stop()
    shutil.copytree(owners[which].folder, copy)
    await owners[which].start()
    await steps(trainer, 4)


@pytest.mark.parametrize(
    ("policy", "which", "checkpoint"),
    [(None, 0, False), (None, 1, True), (P.Async(), 0, True), (P.Async(), 1, False)],
    ids=["plain, first", "plain, second", "rounds, decides", "rounds, follows"],
)
async def test_a_new_trainer_is_told_and_may_go_on(
    both: list[Owner], tmp_path: Path, policy: P.Policy | None, which: int, checkpoint: bool
) -> None:
    async with connected(both) as client:
        await stepped_with_a_copy_between(both, await begun(client, NAMES, policy), which, tmp_path / "copy")
    if checkpoint:
        await asyncio.to_thread(both[1 - which].server.engine.checkpoints.write)
    await put_back(both[which], tmp_path / "copy")
    await both[1 - which].crash()
    async with connected(both) as client, connected(both) as other:
        told = rf"'ps{which}' has gone back to version 3 of .*SGD .*: it had version [67] .*'ps{1 - which}' knows"
        with pytest.raises(tc.errors.SessionLostError, match=told):
            await begun(client, NAMES, policy)
        for each in both:
            (line,) = lines(each)
            assert f"'ps{which}' has gone back to version 3" in line
        trainer = await begun(client, NAMES, policy)
        await steps(trainer, 2)
        for each in both:
            await each.crash()
        await steps(await begun(other, NAMES, policy), 1)
        assert [lines(each) for each in both] == [[], []]


async def test_a_trainer_that_stays_connected_is_told_and_goes_on(
    both: list[Owner], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(both) as client:
        trainer = await begun(client, NAMES, None)

        async def attach() -> None:
            nonlocal trainer
            trainer = await begun(client, NAMES, None)

        async def step(ctx: tc.Context) -> tc.Stepped:
            await ctx.backward(await trainer.loss(Y))
            return await trainer.opt.step(ctx)

        await stepped_with_a_copy_between(both, trainer, 1, tmp_path / "copy")
        await put_back(both[1], tmp_path / "copy")
        assert await client.run(step, attach=attach) == {"ps0": 8, "ps1": 4}
        assert "'ps1' has gone back to version 3" in caplog.text
        assert [len(lines(each)) for each in both] == [1, 1]


async def test_a_part_that_is_made_anew_is_told_to_the_logs_alone(both: list[Owner]) -> None:
    async with connected(both) as client:
        await steps(await begun(client, NAMES, None), 3)
    await put_back(both[1], None)
    async with connected(both) as client:
        await steps(await begun(client, NAMES, None), 1)
        assert [len(lines(each)) for each in both] == [1, 1]


@pytest.mark.parametrize("policy", [None, P.Async()], ids=["plain", "rounds"])
async def test_nothing_is_told_while_others_step(both: list[Owner], policy: P.Policy | None) -> None:
    async with connected(both) as one, connected(both) as other:
        stepping = asyncio.create_task(steps(await begun(one, NAMES, policy), 4))
        while not stepping.done():
            await begun(other, NAMES, policy)
        await stepping
        for each in both:
            await each.crash()
        await begun(other, NAMES, policy)
        assert [lines(each) for each in both] == [[], []]
