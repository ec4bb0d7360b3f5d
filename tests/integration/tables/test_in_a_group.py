"""Tests of tables on owners of a group, whose hosted code gets references of its own kind."""

from __future__ import annotations

import torch

import trainer_client as tc
from tests.conftest import StartProcess

IDS = torch.tensor([5, -9, 5, 7])
NAMES = ("a", "b", "c")


async def test_one_look_up_trains_all_of_its_tables(start_process: StartProcess) -> None:
    first = await start_process("--name", "ps0", "--directory", "self")
    second = await start_process("--name", "ps1", "--directory", first.address)
    for addresses in ((first.address,), (first.address, second.address)):
        async with tc.connect(*addresses) as ps:
            for wanted in (IDS, (IDS, torch.tensor([0, 1]))):
                tables = [await ps.table(name, 2, tc.tables.SGD(lr=1.0), init=tc.tables.Zeros()) for name in NAMES]
                async with ps.context() as ctx:
                    found = await ps.look_up(dict.fromkeys(reversed(tables), wanted))
                    loss = sum((factor * found[each]).sum() for factor, each in zip((1, 2, 3), tables, strict=True))
                    await ctx.backward(loss, step=[each.optimizer for each in tables])
                for factor, each in zip((1, 2, 3), tables, strict=True):
                    assert len(each.owners) == len(addresses)
                    assert (await each(IDS))[:, 0].tolist() == [-2 * factor, -factor, -2 * factor, -factor]
                    await each.delete()
