"""What torch.func offers works in hosted modules, with the numbers of local torch."""

from __future__ import annotations

import pytest
import torch

import trainer_client as tc
from ps_service import RRef
from ps_service.server import Server
from tests import odd_modules, stateful_modules
from tests.integration.odd_training import MODELS, beside_local, training
from tests.training import apart, pins, same_gradients, twin

# Torch's own, when it first differentiates forward.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", ["vmap of grad", "grad of grad", "jacrev", "jacfwd", "hessian"])
async def test_transforms_train_as_they_do_locally(unusual: tuple[Server, tc.Client], way: str) -> None:
    await beside_local("Transforming", (way,), ps=unusual[1])


@pytest.mark.parametrize("way", ["vmap of grad", "grad of grad", "jacrev"])
async def test_transforms_keep_their_numbers_when_others_step_meanwhile(way: str) -> None:
    x = torch.randn(3, odd_modules.SIZE)
    async with training() as (server, ps):
        net = await ps.module(f"{MODELS}.Transforming", way)
        local = await twin(net, odd_modules.Transforming(way))
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.5)

        async def step() -> None:
            async with ps.context() as ctx:
                await ctx.backward((await net(x)).sum())
                await opt.step(ctx)

        async with ps.context() as ctx:
            loss = (await net(x)).sum()
            await apart(step())
            await ctx.backward(loss)
            local(x).sum().backward()
            await same_gradients(ctx, [(net, local)])
        assert pins(server) == 0


async def test_hooks_of_hosted_code_are_in_the_way_as_they_are_locally() -> None:
    x = torch.randn(3, odd_modules.SIZE)
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        odd_modules.Transforming("hooks of its own")(x)
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Transforming", "hooks of its own")
        async with ps.context():
            with pytest.raises(tc.errors.RemoteError, match="saved tensor hooks"):
                await net(x)


@pytest.mark.parametrize("way", ["grad", "vmap", "jacfwd"])
async def test_functions_may_look_modules_up_inside_a_transform(way: str) -> None:
    x = torch.randn(3, odd_modules.SIZE)
    async with training() as (server, ps):
        net = await ps.module(torch.nn.Linear, odd_modules.SIZE, odd_modules.SIZE)
        local = await twin(net, torch.nn.Linear(odd_modules.SIZE, odd_modules.SIZE))
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.5)
        for _ in range(4):  # on the module itself, and on views
            async with ps.context() as ctx:
                loss = (await ps.call(stateful_modules.transformed, net, x, way)).sum()
                await apart(_stepped(ps, net, opt, x))
                await ctx.backward(loss)
                stateful_modules.transformed(RRef(local), x, way).sum().backward()
                await same_gradients(ctx, [(net, local)])
            local.zero_grad()
            local.load_state_dict(await net.state_dict())
        assert pins(server) == 0


async def _stepped(ps: tc.Client, net: tc.RemoteModule, opt: tc.RemoteOptimizer, x: torch.Tensor) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await net(x)).sum())
        await opt.step(ctx)
