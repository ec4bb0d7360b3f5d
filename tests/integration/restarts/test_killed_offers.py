"""Answers to offers and pushes of an owner that is killed, and what happens to them on a full disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.rpc.session_handler import SessionHandler
from tests.integration.restarting import Owner
from tests.integration.restarts.test_killed_rounds import Kill, P, batch, begun, optimizer_of, told
from tests.integration.spanning import waiting
from tests.integration.support import bits
from tests.waiting import until


async def test_a_gradient_that_counted_before_its_answer_was_lost_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Owner(tmp_path, durability="always") as owner:
        one, two = [await begun(owner.address, P.Sync(2)) for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr("ps_service.training.waiting_offers.WaitingOffers.answer", lambda *_: None)
            steps = [asyncio.create_task(each.step(i)) for i, each in enumerate((one, two))]
            await until(lambda: optimizer_of(owner).version == 1)
            written = bits(await one.net.state_dict())
            await owner.server.stop()
        await owner.start()
        assert [told(each) for each in await asyncio.gather(*steps)] == [(1, 0, 1, "")] * 2
        assert bits(await one.net.state_dict()) == written
        found = await asyncio.gather(one.step(3), two.step(4))
        assert [told(each) for each in found] == [(2, 0, 2, "")] * 2
        await asyncio.gather(one.ps.close(), two.ps.close())


async def test_an_answer_that_was_lost_on_its_way_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Owner(tmp_path, durability="always") as owner:
        one, two = [await begun(owner.address, P.Sync(2)) for _ in range(2)]
        with monkeypatch.context() as patch:
            made: list[Any] = []
            send = SessionHandler._send_durable

            def lose(self: Any, log: Any, answer: Any, later: bool = False) -> None:
                if answer.reply.HasField("step"):
                    made.append(answer)
                else:
                    send(self, log, answer, later)

            patch.setattr(SessionHandler, "_send_durable", lose)
            steps = [asyncio.create_task(each.step(i)) for i, each in enumerate((one, two))]
            await until(lambda: len(made) == 2)
            await owner.server.stop()
        await owner.start()
        assert [told(each) for each in await asyncio.gather(*steps)] == [(1, 0, 2, "")] * 2
        await asyncio.gather(one.ps.close(), two.ps.close())


@pytest.mark.parametrize("policy", [P.Sync(1), P.Quorum(2)], ids=lambda each: each.kind)
async def test_a_push_that_counted_before_its_answer_was_lost_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: P.Policy
) -> None:
    async with Owner(tmp_path, durability="always") as owner:
        one = await begun(owner.address, policy)
        replica = await one.net.replica()
        replica(batch(0)).square().sum().backward()
        with monkeypatch.context() as patch:
            patch.setattr("ps_service.training.waiting_offers.WaitingOffers.answer", lambda *_: None)
            push = replica.push(one.opt)
            rounds = optimizer_of(owner).aggregator
            assert rounds is not None
            await until(lambda: optimizer_of(owner).version == 1 or len(rounds.journal.settled.open.counted) == 1)
            await owner.server.stop()
        await owner.start()
        stepped = await push
        assert stepped is not None and not stepped.dropped
        replica(batch(1)).square().sum().backward()
        stepped = await replica.push(one.opt)
        assert stepped == {"ps0": 2 if policy.kind == "sync" else 1} and optimizer_of(owner).version == stepped["ps0"]
        await one.ps.close()


async def test_values_of_an_open_round_are_those_of_all_its_gradients(tmp_path: Path) -> None:
    async with Owner(tmp_path, durability="always") as owner:
        one = await begun(owner.address, P.Quorum(3))

        async def step(ctx: tc.Context, number: int) -> tc.Stepped:
            await ctx.backward((await one.net(batch(1))).sum())
            return await one.opt.step(ctx, values={"x": float(number), "seen": torch.tensor([number])})

        for number in range(3):
            stepped = await one.ps.run(step, number)  # it may begin before it hears of a kill
            if number == 0:
                await owner.crash()
            if number == 1:
                await asyncio.to_thread(owner.server.engine.checkpoints.write)
                await owner.crash()
        assert stepped.counted == 3 and stepped.reported["x"] == 1.0
        assert torch.equal(stepped.reported["seen"], torch.tensor([1.0]))
        await one.ps.close()


@pytest.mark.parametrize("policy", [P.Sync(2), P.Quorum(2), P.BoundedStaleness(1)], ids=lambda each: each.kind)
async def test_pushes_are_as_without_a_kill(tmp_path: Path, policy: P.Policy) -> None:
    async def nothing() -> None:
        pass

    async def pushed(owner: Owner, kill: Kill) -> Any:
        both = [await begun(owner.address, policy) for _ in range(2)]
        replicas = [await each.net.replica() for each in both]
        for i in range(4):
            for replica in replicas:
                replica(batch(i)).square().sum().backward()
            pushing = []
            for replica, each in zip(replicas, both, strict=True):
                pushing.append(replica.push(each.opt))
                if policy.kind != "sync":
                    await pushing[-1]
            await asyncio.gather(*pushing)
            await kill()
        await replicas[0].pull()
        found = bits([await both[0].net.state_dict(), await both[0].opt.state_dict()])
        assert bits(dict(replicas[0].module.named_parameters())["weight"]) == bits(
            (await both[0].net.state_dict())["weight"]
        )
        await asyncio.gather(*(each.ps.close() for each in both))
        return found, optimizer_of(owner).version

    async with Owner(tmp_path / "whole") as owner:
        expected = await pushed(owner, nothing)
    async with Owner(tmp_path / "killed", durability="interval:0.01") as owner:
        assert await pushed(owner, owner.crash) == expected


@pytest.mark.parametrize("policy", [P.Sync(2), P.Quorum(2)], ids=lambda each: each.kind)
async def test_a_full_disk_stops_rounds_and_loses_no_gradient_that_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: P.Policy
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    async with Owner(tmp_path, durability="always") as owner:
        one, two = [await begun(owner.address, policy) for _ in range(2)]
        if policy.kind == "quorum":
            assert (await one.step(0)).counted == 0
        else:
            first = asyncio.create_task(one.step(0))
            await until(lambda: waiting(owner.server) == 1)
        before = bits(await one.net.state_dict())
        with monkeypatch.context() as patch:
            # The offer finds room, and its round does not.
            log = owner.server.engine.durability.log
            assert log is not None
            calls = 0

            def once(nbytes: int) -> None:
                nonlocal calls
                calls += 1
                if calls > 1:
                    raise tc.errors.StorageError("No space left on device")

            patch.setattr(log, "check", once)
            with pytest.raises(tc.errors.StorageError, match="No space left"):
                await two.step(1)
            if policy.kind == "sync":
                with pytest.raises(tc.errors.StorageError, match="No space left"):
                    await first
            patch.setattr(log, "check", full)
        assert bits(await one.net.state_dict()) == before
        if policy.kind == "quorum":
            # The gradient of before is still there.
            assert (await two.step(2)).counted == 2
        else:
            found = await asyncio.gather(one.step(2), two.step(3))
            assert [each.counted for each in found] == [2, 2]
        written = bits([await one.net.state_dict(), await one.opt.state_dict()])
        version = optimizer_of(owner).version
        await owner.crash()
        assert bits([await one.net.state_dict(), await one.opt.state_dict()]) == written
        assert optimizer_of(owner).version == version
        await asyncio.gather(one.ps.close(), two.ps.close())
