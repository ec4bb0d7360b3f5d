"""Optimizers run where the parameters live, are shared by all trainers, and step wholly or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.passes.binding import FIRST_EXAMINED
from tests.training import MODELS, OPTIMIZERS, identical, owners, same, same_state, training, twin

NAN, INF = float("nan"), float("inf")


async def step(ps: tc.Client, opt: tc.DistributedOptimizer, *losses: Any) -> dict[str, int]:
    """A pass: each of `losses` makes a part of the loss."""
    async with ps.context() as ctx:
        parts = [await loss() if callable(loss) else loss for loss in losses]
        await ctx.backward(torch.stack([part.sum() for part in parts]).sum())
        return await opt.step(ctx)


async def test_trainers_share_an_optimizer_and_its_state() -> None:
    async with owners("ps0") as (server,), tc.connect(server.address) as one, tc.connect(server.address) as other:
        nets = [await ps.module("torch.nn.Linear", 3, 2, name="net") for ps in (one, other)]
        local = await twin(nets[0], nn.Linear(3, 2))
        opts = [
            await ps.optimizer(optim.Adam, net.parameters(), lr=0.1) for ps, net in zip((one, other), nets, strict=True)
        ]
        local_opt = optim.Adam(local.parameters(), lr=0.1)
        for number in range(6):
            x = torch.randn(4, 3)
            turn = number % 2
            net = nets[turn]
            assert await step((one, other)[turn], opts[turn], lambda x=x, net=net: net(x)) == {"ps0": number + 1}
            local_opt.zero_grad()
            local(x).sum().backward()
            local_opt.step()
        await same_state(nets[1], local)
        states = [await opt.state_dict() for opt in opts]
        assert identical(*states)
        assert identical(states[0]["state"], local_opt.state_dict()["state"])
        assert [(each.name, each.version) for each in (await one.status()).optimizers] == [("net.optimizer", 6)]


@pytest.mark.parametrize(
    "cls,options",
    [
        (optim.Adam, {"lr": 0.1}),
        (optim.SGD, {"lr": 0.2}),
        (optim.SGD, {"lr": 0.1, "momentum": 0.5}),
        (optim.SGD, {"lr": 0.1, "reads": "inconsistent"}),
        (optim.SGD, {"lr": 0.1, "non_finite": "refuse"}),
    ],
    ids=["another class", "another value", "another option", "other reads", "another refusal"],
)
async def test_asking_for_another_optimizer_under_a_taken_name_is_refused(
    cls: type[optim.Optimizer], options: dict[str, Any]
) -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 3, 2, name="net")
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        with pytest.raises(tc.errors.NameConflictError, match=r"net\.optimizer"):
            await ps.optimizer(cls, net.parameters(), **options)
        again = await ps.optimizer("torch.optim.SGD", net.parameters(), lr=0.1)
        assert again.remotes["ps0"].handle == opt.remotes["ps0"].handle
        # Under a name of its own it is another one.
        other = await ps.optimizer(cls, net.parameters(), name="other", **options)
        assert other.remotes["ps0"].handle != opt.remotes["ps0"].handle


async def test_equal_options_are_the_same_whatever_their_types() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 3, 2, name="net")
        assert await ps.module("torch.nn.Linear", 3.0, 2, name="net") == net
        groups = [{"params": net.parameters(), "lr": 1}]
        opt = await ps.optimizer(optim.Adam, groups, betas=(0.5, 0.9), weight_decay=1, foreach=False)
        groups[0]["lr"] = 1.0
        same = await ps.optimizer(optim.Adam, groups, weight_decay=1.0, betas=[0.5, 0.9], foreach=False)
        assert same.remotes["ps0"].handle == opt.remotes["ps0"].handle
        for options in ({"weight_decay": True}, {"weight_decay": 1, "foreach": None}, {"weight_decay": 1.5}):
            with pytest.raises(tc.errors.NameConflictError):
                await ps.optimizer(optim.Adam, groups, **{"betas": (0.5, 0.9), "foreach": False, **options})


async def test_optimizers_of_anonymous_modules_are_their_makers_own() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 3, 2)
        opts = [await ps.optimizer(optim.SGD, net.parameters(), lr=0.1) for _ in range(2)]
        assert await step(ps, opts[0], lambda: net(torch.ones(1, 3))) == {"ps0": 1}
        assert await step(ps, opts[1], lambda: net(torch.ones(1, 3))) == {"ps0": 1}


async def test_groups_may_span_owners_and_this_process() -> None:
    async with training("ps0", "ps1") as (_, ps):
        nets = [await ps.module("torch.nn.Linear", 3, 3, owner=owner) for owner in ("ps0", "ps1")]
        twins = [await twin(net, nn.Linear(3, 3)) for net in nets]
        here, local = nn.Linear(3, 3), nn.Linear(3, 3)
        local.load_state_dict(here.state_dict())
        parts, locals_ = [*nets, here], [*twins, local]

        def groups(modules: Any) -> list[dict[str, Any]]:
            named = [dict(module.named_parameters()) for module in modules]
            return [
                {"params": [each["weight"] for each in named], "lr": 0.1, "momentum": 0.9},
                {"params": [named[1]["bias"]], "weight_decay": 0.1},
                {"params": [named[2]["bias"], named[0]["bias"]]},
            ]

        opt = await ps.optimizer(optim.SGD, groups(parts), lr=0.01)
        local_opt = optim.SGD(groups(locals_), lr=0.01)

        async def both(x: torch.Tensor) -> None:
            y = here(x)
            versions = await step(ps, opt, lambda: nets[0](y), lambda: nets[1](y))
            assert set(versions) == {"ps0", "ps1"}
            local_opt.zero_grad()
            (twins[0](local(x)) + twins[1](local(x))).sum().backward()
            local_opt.step()
            for net, module in zip(nets, twins, strict=True):
                await same_state(net, module)
            for name, value in here.state_dict().items():
                same(value, local.state_dict()[name], name)

        for _ in range(3):
            await both(torch.randn(4, 3))
        for group, options in ((0, {"lr": 0.2, "momentum": 0.5}), (2, {"lr": 0.5}), (None, {"weight_decay": 0.2})):
            await opt.set_options(group, **options)
            for each in local_opt.param_groups if group is None else [local_opt.param_groups[group]]:
                each.update(options)
            await both(torch.randn(4, 3))


async def test_parameters_without_a_gradient_are_passed_over() -> None:
    async with training("ps0", "ps1") as (_, ps):
        used, idle = await ps.module("torch.nn.Linear", 3, 2), await ps.module("torch.nn.Linear", 3, 2)
        far = await ps.module("torch.nn.Linear", 3, 2, owner="ps1")
        modules = (used, idle, far)
        opt = await ps.optimizer(optim.SGD, [p for net in modules for p in net.parameters()], lr=0.1, weight_decay=0.5)
        before = [await net.state_dict() for net in modules]
        assert await step(ps, opt, lambda: used(torch.ones(1, 3))) == {"ps0": 1, "ps1": 0}
        after = [await net.state_dict() for net in modules]
        assert [identical(*pair) for pair in zip(before, after, strict=True)] == [False, True, True]
        async with ps.context() as ctx:
            assert await opt.step(ctx) == {"ps0": 1, "ps1": 0}
        assert identical([await net.state_dict() for net in modules], after)


@pytest.mark.filterwarnings("ignore:a second step of the same optimizer")
async def test_a_context_may_be_applied_again_and_keeps_its_gradients() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 3, 2)
        local = await twin(net, nn.Linear(3, 2))
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1, momentum=0.9)
        local_opt = optim.SGD(local.parameters(), lr=0.1, momentum=0.9)
        local(torch.ones(2, 3)).sum().backward()
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(2, 3))).sum())
            gradients = await ctx.get_gradients()
            for number in range(3):
                assert await opt.step(ctx) == {"ps0": number + 1}
                local_opt.step()
                await same_state(net, local)
            assert identical(await ctx.get_gradients(), gradients)


async def test_steps_of_trainers_at_the_same_moment_all_count() -> None:
    async with owners("ps0") as (server,), tc.connect(server.address) as one, tc.connect(server.address) as other:
        nets = [await ps.module("torch.nn.Linear", 3, 2, bias=False, name="net") for ps in (one, other)]
        await nets[0].load_state_dict({"weight": torch.zeros(2, 3)})

        async def run(trainer: int, number: int) -> int:
            ps, net = (one, other)[trainer], nets[trainer]
            opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.5)
            return (await step(ps, opt, lambda: net(torch.full((1, 3), float(number)))))["ps0"]

        versions = await asyncio.gather(*(run(trainer, number) for number in range(16) for trainer in (0, 1)))
        assert sorted(versions) == list(range(1, 33))
        # The gradient does not depend on the weight, so the order of the steps does not matter.
        assert torch.equal((await nets[0].state_dict())["weight"], torch.full((2, 3), -0.5 * 2 * sum(range(16))))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam])
async def test_a_gradient_that_is_not_finite_is_refused_and_changes_nothing(
    bad: float, cls: type[optim.Optimizer]
) -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Tied", 5, 3)
        other = await ps.module("torch.nn.Linear", 3, 2)
        opt = await ps.optimizer(cls, [*net.parameters(), *other.parameters()], lr=0.1, non_finite="refuse")
        ids = torch.tensor([0, 1])
        await step(ps, opt, lambda: net(ids), lambda: other(torch.ones(1, 3)))
        before = [await each.state_dict() for each in (net, other, opt)]
        with pytest.raises(tc.errors.NonFiniteGradientError, match="gradient of 'weight'"):
            await step(ps, opt, lambda: net(ids), lambda: other(torch.tensor([[1.0, bad, 1.0]])))
        assert identical([await each.state_dict() for each in (net, other, opt)], before)
        assert await step(ps, opt, lambda: net(ids)) == {"ps0": 2}


async def test_a_gradient_that_is_not_finite_is_applied_by_default() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 3, 2)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        assert await step(ps, opt, lambda: net(torch.full((1, 3), NAN))) == {"ps0": 1}
        assert (await net.state_dict())["weight"].isnan().all()


async def test_a_local_gradient_that_is_not_finite_is_refused_too() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 3, 2)
        local = nn.Linear(3, 3)
        opt = await ps.optimizer(optim.SGD, [*net.parameters(), *local.parameters()], lr=0.1, non_finite="refuse")
        before = {name: value.clone() for name, value in local.state_dict().items()}
        there = await net.state_dict()
        with pytest.raises(tc.errors.NonFiniteGradientError, match="nothing was applied"):
            await step(ps, opt, local(torch.full((1, 3), NAN)), lambda: net(torch.ones(1, 3)))
        assert identical(dict(local.state_dict()), before)
        assert identical(await net.state_dict(), there)


async def test_a_step_that_raises_halfway_changes_nothing() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 3, 2)
        opt = await ps.optimizer(f"{OPTIMIZERS}.HalfWay", net.parameters(), lr=0.1)
        one = torch.ones(1, 3)
        for steps in (0, 1):
            before = await net.state_dict(), await opt.state_dict()
            # The bias comes second, and gets a gradient of zeros.
            async with ps.context() as ctx:
                await ctx.backward((await net(one) - await net(0 * one)).sum())
                with pytest.raises(tc.errors.RemoteError, match="a gradient of zeros only") as caught:
                    await opt.step(ctx)
            assert caught.value.remote_type == "builtins.ArithmeticError"
            assert identical((await net.state_dict(), await opt.state_dict()), before)
            assert before[1]["param_groups"][0]["steps"] == steps
            assert await step(ps, opt, lambda: net(one)) == {"ps0": steps + 1}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
async def test_gradients_as_rows_go_only_to_optimizers_that_take_them() -> None:
    async with training() as (_, ps):
        table = await ps.module("torch.nn.Embedding", 5, 3, sparse=True)
        other = await ps.module("torch.nn.Linear", 3, 2)
        parameters = [*other.parameters(), *table.parameters()]
        ids = torch.tensor([0, 1])
        for cls in (optim.Adam, optim.RMSprop, optim.AdamW):
            opt = await ps.optimizer(cls, parameters, lr=0.1)
            before = [await each.state_dict() for each in (table, other, opt)]
            with pytest.raises(
                tc.errors.InvalidArgumentError, match=rf"{cls.__name__} cannot take .* of 'weight'.*SparseAdam"
            ):
                await step(ps, opt, lambda: table(ids), lambda: other(torch.ones(1, 3)))
            assert identical([await each.state_dict() for each in (table, other, opt)], before)
        opt = await ps.optimizer(optim.Adagrad, parameters, lr=0.1)
        assert await step(ps, opt, lambda: table(ids), lambda: other(torch.ones(1, 3))) == {"ps0": 1}


@pytest.mark.parametrize("options", [{"lr": "fast"}, {"momentum": None}, {"lr": [0.1]}])
async def test_options_with_which_no_step_can_be_made_are_refused(options: dict[str, Any]) -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 3, 2)
        with pytest.raises(tc.errors.InvalidArgumentError):
            await ps.optimizer("torch.optim.SGD", net.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})
        with pytest.raises(tc.errors.InvalidArgumentError):
            await ps.optimizer("torch.optim.SGD", [{"params": net.parameters(), **options}], lr=0.1, momentum=0.9)
        opt = await ps.optimizer("torch.optim.SGD", net.parameters(), lr=0.1, momentum=0.9)
        await step(ps, opt, lambda: net(torch.ones(1, 3)))
        before = await opt.state_dict()
        with pytest.raises(tc.errors.InvalidArgumentError, match="SGD cannot make a step with these options"):
            await opt.set_options(**options)
        assert identical(await opt.state_dict(), before)
        assert await step(ps, opt, lambda: net(torch.ones(1, 3))) == {"ps0": 2}


async def test_unknown_groups_and_options_are_refused_everywhere() -> None:
    async with training("ps0", "ps1") as (_, ps):
        nets = [await ps.module("torch.nn.Linear", 3, 2, owner=owner) for owner in ("ps0", "ps1")]
        local = nn.Linear(3, 2)
        mixed = await ps.optimizer(optim.Adam, [*(p for net in nets for p in net.parameters()), *local.parameters()])
        only_local = await ps.optimizer(optim.Adam, local.parameters())
        for opt in (mixed, only_local):
            before = await opt.state_dict()
            with pytest.raises(tc.errors.InvalidArgumentError, match="no parameter group 1"):
                await opt.set_options(1, lr=0.1)
            with pytest.raises(tc.errors.InvalidArgumentError, match="no option 'momentum'"):
                await opt.set_options(momentum=0.9)
            assert identical(await opt.state_dict(), before)


async def test_an_option_that_needs_other_state_cannot_be_changed_after_a_step() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 3, 2)
        opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)
        await opt.set_options(amsgrad=True)
        await opt.set_options(amsgrad=False)
        await step(ps, opt, lambda: net(torch.ones(1, 3)))
        with pytest.raises(tc.errors.InvalidArgumentError, match="amsgrad"):
            await opt.set_options(amsgrad=True)
        assert await step(ps, opt, lambda: net(torch.ones(1, 3))) == {"ps0": 2}


async def test_an_invalid_optimizer_is_refused() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 3, 2)
        local = nn.Linear(3, 2)
        for cls, parameters, options, error in (
            (optim.SGD, [], {"lr": 0.1}, tc.errors.InvalidArgumentError),
            (optim.SGD, [net], {"lr": 0.1}, tc.errors.InvalidArgumentError),
            (optim.SGD, net.named_parameters(), {"lr": 0.1}, tc.errors.InvalidArgumentError),
            (optim.SGD, net.parameters(), {"lr": -0.1}, tc.errors.InvalidArgumentError),
            (optim.SGD, net.parameters(), {"speed": 0.1}, tc.errors.InvalidArgumentError),
            (optim.SGD, local.parameters(), {"speed": 0.1}, tc.errors.InvalidArgumentError),
            (optim.SGD, net.parameters(), {"lr": 0.1, "reads": "some"}, tc.errors.InvalidArgumentError),
            (optim.LBFGS, net.parameters(), {}, tc.errors.InvalidArgumentError),
            (optim.Adam, net.parameters(), {"differentiable": True}, tc.errors.InvalidArgumentError),
            ("torch.optim.SGD", local.parameters(), {"lr": 0.1}, tc.errors.InvalidArgumentError),
            ("torch.optim.Optimizer", net.parameters(), {"lr": 0.1}, tc.errors.NotAllowedError),
            ("torch.nn.Linear", net.parameters(), {"lr": 0.1}, tc.errors.NotAllowedError),
        ):
            with pytest.raises(error):
                await ps.optimizer(cls, parameters, **options)
        assert not (await ps.status()).optimizers


async def test_a_leaf_of_no_module_is_found_whenever_a_call_uses_it(ps: tc.Client) -> None:
    leaf = await ps.remote("tests.hosted_models.offset")
    opt = await ps.optimizer(torch.optim.SGD, [leaf], lr=0.5)
    net, before = await ps.module("tests.hosted_models.Offsetting"), await leaf.to_here()

    async def stepped(with_offset: bool) -> torch.Tensor:
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 3), with_offset)).sum())
            await opt.step(ctx)
        return await leaf.to_here()

    for _ in range(FIRST_EXAMINED + 2):
        assert torch.equal(await stepped(False), before)
    for times in (1, 2, 3):
        assert torch.equal(await stepped(True), before - 0.5 * times)
