"""Steps in threads of programs that have begun backwards and not awaited them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.integration.held import held_request
from tests.integration.test_unawaited_backwards import X, Y, ps, trained
from tests.waiting import until
from trainer_client import Client
from trainer_client.optimizers import optimizer

__all__ = ["ps"]


async def test_a_step_in_a_thread_waits_for_a_backward(ps: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    net = await ps.module(nn.Linear, 3, 2)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    local, waiting, wait = await trained(net), threading.Event(), optimizer.wait_here

    def noted(*of: Any) -> None:
        waiting.set()
        wait(*of)

    monkeypatch.setattr(optimizer, "wait_here", noted)
    async with ps.context() as ctx:
        loss = mse_loss(await net(X), Y)
        with held_request(monkeypatch, "backward") as late:
            ctx.backward(loss)
            await late.has_come()
            applied = asyncio.create_task(asyncio.to_thread(opt.apply, ctx))
            await until(waiting.is_set)
            await late.go_on()
        await applied
    for name, value in (await net.state_dict()).items():
        torch.testing.assert_close(value, local.state_dict()[name])
