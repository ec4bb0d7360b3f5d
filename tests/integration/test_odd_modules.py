"""Hosted modules that reach their parameters in unusual ways train as they do locally."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trainer_client as tc
from ps_service.server import Server
from tests import odd_modules, odd_structure, parameter_modules
from tests.integration.odd_training import MODELS, beside_local, train_both, training
from tests.training import apart, hosted_value, pins, same_gradients, twin

# Torch's compiler looks for gradients where there are none, and then warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("way", odd_structure.WAYS)
async def test_whatever_leads_to_a_parameter_is_followed(unusual: tuple[Server, tc.Client], way: str) -> None:
    await beside_local("Odd", (way,), models=odd_structure, ps=unusual[1])


@pytest.mark.parametrize(
    ("backend", "whole"), [("aot_eager", True), ("eager", False)], ids=["whole, aot_eager", "in part, eager"]
)
async def test_compiled_modules_train(backend: str, whole: bool) -> None:
    await beside_local("Compiled", (backend, whole))


@pytest.mark.parametrize("way", ["dataclass", "slots"])
async def test_helpers_keep_their_other_attributes(way: str) -> None:
    async with training() as (server, ps):
        net = await ps.module("tests.odd_structure.Odd", way)
        for _ in range(3):
            await net(torch.ones(2, odd_modules.SIZE))
        assert hosted_value(server, net).run.calls == 3
        assert await net.calls() == 3


async def test_a_module_is_called_as_its_class_says() -> None:
    await beside_local("Calling", (), models=parameter_modules)
    async with training() as (_, ps):
        net = await ps.module("tests.parameter_modules.Calling")
        local = await twin(net, parameter_modules.Calling())
        x = torch.ones(2, odd_modules.SIZE)
        torch.testing.assert_close(await net.twice(x), local.twice(x).detach())


async def test_an_optimizer_passes_over_parameters_of_integers() -> None:
    await beside_local("IntegersFirst", (), models=parameter_modules)


async def test_hooks_of_parameters_run_in_their_order_until_they_are_removed() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.HookedParameters")
        local = await twin(net, odd_modules.HookedParameters())
        await train_both(ps, net, local)
        await net.release()
        local.release()
        await train_both(ps, net, local)


async def test_hooks_of_results_find_the_numbers_of_their_pass() -> None:
    await beside_local("HookedResult", ())


async def test_hooks_of_results_find_them_also_when_others_have_stepped_meanwhile() -> None:
    async with training() as (server, ps):
        net = await ps.module(f"{MODELS}.HookedResult")
        local = await twin(net, odd_modules.HookedResult())
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.5)
        x = torch.ones(2, odd_modules.SIZE)
        async with ps.context() as ctx:
            loss = (await net(x)).sum()
            await apart(_train_once(ps, net, opt, x))
            await ctx.backward(loss)
            await same_gradients(ctx, [(net, _backward(local, x))])
        assert pins(server) == 0


async def _train_once(ps: tc.Client, net: tc.RemoteModule, opt: tc.DistributedOptimizer, x: torch.Tensor) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await net(x)).sum())
        await opt.step(ctx)


def _backward(local: torch.nn.Module, x: torch.Tensor) -> torch.nn.Module:
    local(x).sum().backward()
    return local


async def test_a_parameter_that_is_found_in_another_way_is_trained() -> None:
    await beside_local("Unreachable", ("generator",), 5)


@pytest.mark.parametrize("way", ["registered", "reference", "list"])
async def test_the_parameters_of_another_hosted_module_are_trained_or_refused(way: str) -> None:
    async with training() as (_, ps):
        other = await ps.module(torch.nn.Linear, odd_modules.SIZE, 1, seed=0)
        net = await ps.module(f"{MODELS}.Borrowing", other, way)
        x = torch.ones(2, odd_modules.SIZE)
        assert (await net(x)).shape == (2, 1), "nothing is lost without a pass"
        async with ps.context() as ctx:
            if way == "list":
                with pytest.raises(tc.errors.InvalidArgumentError, match="another hosted module"):
                    await net(x)
                return
            await ctx.backward((await net(x)).sum())
            gradients = {each.ref.parameter: grad for each, grad in (await ctx.get_gradients()).items()}
        assert torch.equal(gradients[next(name for name in gradients if name.endswith("bias"))], torch.tensor([2.0]))


async def test_hooks_that_cannot_run_are_refused_when_the_module_is_made() -> None:
    async with training() as (_, ps):
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"'layer\.bias'.*register_hook"):
            await ps.module(f"{MODELS}.PostAccumulating")


@pytest.mark.parametrize("foreach", [True, False])
async def test_parameters_with_the_same_gradient_are_stepped_as_locally(foreach: bool) -> None:
    options: Any = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": foreach}
    async with training() as (_, ps):
        net = await ps.module("tests.parameter_modules.Added")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), **options)
        local = parameter_modules.Added()
        local_opt = torch.optim.SGD(local.parameters(), **options)
        for _ in range(3):
            x = torch.ones(odd_modules.SIZE)
            async with ps.context() as ctx:
                await ctx.backward((await net(x)).sum(), step=opt)
            local_opt.zero_grad()
            local(x).sum().backward()
            local_opt.step()
        state = await net.state_dict()
        assert all(torch.equal(state[name], value) for name, value in local.state_dict().items())
