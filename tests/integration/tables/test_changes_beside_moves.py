"""Tests of what else is changed of a table whose rows move, by handles that may not have heard of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import trainer_client as tc
from ps_wire.tables.routing import SLOTS
from tests.integration.tables.moving import NAMES, Addresses, drawn, table_of, train
from trainer_client.pending import Pending
from trainer_client.tables.moves import Move

IDS = torch.arange(50)


async def stepped_by(ps: tc.Client, items: tc.Table) -> Any:
    """By how much a step with gradients of one changes rows: their learning rates under SGD, each once."""
    before = await items(IDS)
    async with ps.context() as ctx:
        if (rows := await items(IDS)).requires_grad:
            await ctx.backward(rows.sum(), step=items.optimizer)
    return (before - await items(IDS)).unique().tolist()


async def halve(items: tc.Table) -> None:
    state = await items.optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.5
    await items.optimizer.load_state_dict(state)


CHANGES: dict[str, Any] = {
    "options": lambda _, items: items.optimizer.set_options(lr=0.5),
    "state": lambda _, items: halve(items),
    "freeze": lambda _, items: items.parameters()[0].requires_grad_(False),
    "freeze all": lambda ps, items: ps.requires_grad_(items.parameters(), False),
}


async def sgd(ps: tc.Client, name: str) -> tc.Table:
    return await table_of(ps, name, tc.tables.SGD(1.0), init=tc.tables.Zeros())


@pytest.mark.parametrize("what", CHANGES)
async def test_a_change_reaches_the_owners_that_have_the_rows(trio: tuple[tc.Client, tc.Client], what: str) -> None:
    ps, other = trio
    items = await sgd(ps, "items")
    await train(ps, items, drawn(1))
    await other.drain("ps0", "ps2", ["items"])
    await CHANGES[what](ps, items)
    assert await stepped_by(ps, items) == ([0.0] if "freeze" in what else [0.5])
    if what not in ("options", "freeze"):
        return
    # It goes along with the next move.
    await other.drain("ps2", "ps0", ["items"])
    await other.drain("ps1", "ps2", ["items"])
    assert await stepped_by(ps, items) == ([0.0] if "freeze" in what else [0.5])


@pytest.mark.parametrize("what", CHANGES)
async def test_a_change_while_slots_are_released_is_not_lost(
    trio: tuple[tc.Client, tc.Client], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The new owner has got the options before, and the program that makes the change does not know of it."""
    ps, other = trio
    items = await sgd(ps, "items")
    await train(ps, items, drawn(1))
    call = Move._call
    changing: list[Any] = []

    async def change_before(move: Move, owner: str, method: str, *args: Any) -> Any:
        if method == "release":
            monkeypatch.setattr(Move, "_call", call)
            changing.append(CHANGES[what](ps, items))
            for shard in items.shards.values():  # what was sent before is done
                await shard.call("agree", items.routing.to_plain())
        return await call(move, owner, method, *args)

    monkeypatch.setattr(Move, "_call", change_before)
    await other.drain("ps0", "ps2", ["items"])
    await changing[0]
    assert await stepped_by(ps, items) == ([0.0] if "freeze" in what else [0.5])


async def test_a_policy_and_a_scheduler_are_given_to_the_owners_that_have_the_rows(
    trio: tuple[tc.Client, tc.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    ps, other = trio
    for name in ("policy", "schedule"):
        items = await sgd(ps, name)
        await other.drain("ps0", "ps2", [name])
        if name == "policy":
            await items.optimizer.set_policy(tc.policies.Sync(1))
        else:
            await (await ps.scheduler(lr_scheduler.StepLR, items.optimizer, step_size=1, gamma=0.5)).step()
            assert await stepped_by(ps, items) == [0.5]
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"the (policy Sync|scheduler)"):
            await other.drain("ps2", "ps0", [name])
    # Also one that comes while rows are copied.
    items = await sgd(ps, "late")
    copy = Move._copy

    async def change_then(move: Move) -> None:
        await copy(move)
        await items.optimizer.set_policy(tc.policies.Sync(1))

    monkeypatch.setattr(Move, "_copy", change_then)
    with pytest.raises(tc.errors.InvalidArgumentError, match="the policy Sync"):
        await other.drain("ps0", "ps2", ["late"])
    assert (await items.follower.follow_all()).owners == ("ps0", "ps1")


@pytest.mark.parametrize("when", ["before", "meanwhile", "by name meanwhile"])
async def test_a_table_is_deleted_where_rows_have_moved_or_are_about_to(
    trio: tuple[tc.Client, tc.Client], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    ps, other = trio
    items = await sgd(ps, "items")
    await train(ps, items, drawn(1))
    if when == "before":
        await other.drain("ps0", "ps2", ["items"])
        await items.delete()
    else:
        extend = type(other._tables).extend

        async def delete_then(*args: Any) -> None:
            await (items.delete() if when == "meanwhile" else ps.delete("items"))
            monkeypatch.undo()
            await extend(*args)

        monkeypatch.setattr(type(other._tables), "extend", delete_then)
        with pytest.raises(tc.errors.StaleHandleError, match="deleted"):
            await other.drain("ps0", "ps2", ["items"])
    for owner in NAMES:
        with pytest.raises(tc.errors.UnknownNameError):
            await ps.attach("items", owner=owner)
    again = await sgd(ps, "items")
    assert (await again(IDS)).unique().tolist() == [0.0]
    await other.rebalance(["items"])


async def test_a_table_of_that_name_on_other_owners_stays(trio: tuple[tc.Client, tc.Client]) -> None:
    ps, other = trio
    items = await table_of(ps, "items", owners=["ps0"])
    await table_of(other, "items", owners=["ps2"])
    await items.delete()
    assert (await other.attach("items", owner="ps2")).name == "items"


@pytest.mark.parametrize(("method", "source"), [("size", "ps0"), ("size", "ps1"), ("clear", "ps1")])
async def test_rows_that_move_between_two_answers_count_once(
    trio: tuple[tc.Client, tc.Client], method: str, source: str
) -> None:
    ps, other = trio
    items, its = await sgd(ps, "items"), await sgd(other, "items")
    await train(ps, items, drawn(1))
    size, call = await items.size(), items._call
    answered: list[Any] = []

    def second_later(owner: str, name: str, *args: Any) -> Any:
        if len(answered) == 1:
            answered.append(Pending.run(items._loop, moved(owner, name, *args)))
        else:
            answered.append(call(owner, name, *args))
        return answered[-1]

    async def moved(owner: str, *args: Any) -> Any:
        await answered[0]
        slots = its.routing.slots(source) & (torch.arange(SLOTS) % 2 == 0)
        await Move(other._tables, its, source, "ps1" if source == "ps0" else "ps0", slots).run()
        return await call(owner, *args)

    items._call = second_later  # type: ignore[method-assign]
    found = await getattr(items, method)()
    del items._call
    assert len(answered) > 2
    assert (found, await items.size()) == ((size, size) if method == "size" else (None, 0))


async def test_what_cannot_be_moved_is_said(trio: tuple[tc.Client, tc.Client], addresses: Addresses) -> None:
    ps, _ = trio
    with pytest.raises(tc.errors.UnknownNameError, match="not connected to an owner 'ps9'"):
        await ps.drain("ps9")
    async with tc.connect(addresses[0]) as alone:
        items = await table_of(alone, "items", owners=["ps0"])
        await ps.drain("ps0", "ps1", ["items"])
        with pytest.raises(tc.errors.UnknownNameError, match=r"have moved to ps1, .* through the directory"):
            await items(IDS)
