"""The shortest whole story: a module on an owner is trained as it would be locally."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import trainer_client as tc


async def test_trains_like_local_torch(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 3, name="net", seed=0)
    opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
    torch.manual_seed(0)
    local = torch.nn.Linear(4, 3)
    local_opt = torch.optim.SGD(local.parameters(), lr=0.1)
    for step in range(5):
        x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
        async with ps.context() as ctx:
            loss = F.cross_entropy(await net(x), y)
            await ctx.backward(loss)
            assert await opt.step(ctx) == {"ps0": step + 1}
        local_loss = F.cross_entropy(local(x), y)
        local_opt.zero_grad()
        local_loss.backward()
        local_opt.step()
        assert torch.equal(loss, local_loss)
    state = await net.state_dict()
    assert all(torch.equal(state[name], value) for name, value in local.state_dict().items())


def test_without_await(owner_process_address: str) -> None:
    with tc.connect(owner_process_address) as ps:
        net = ps.module("torch.nn.Linear", 4, 3)
        opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        before = net.state_dict()["weight"]
        with ps.context() as ctx:
            loss = net(torch.ones(2, 4)).sum()
            ctx.backward(loss)
            assert opt.step(ctx) == {"ps0": 1}
        torch.testing.assert_close(net.state_dict()["weight"], before - 0.1 * 2)
