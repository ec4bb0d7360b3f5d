"""Learning rates and clipping over several owners and local parameters, held to torch's own."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import trainer_client as tc
from tests.training import identical, owners, same, same_gradients, same_state, training, twin

SCHEDULERS: dict[str, tuple[type[lr_scheduler.LRScheduler], dict[str, Any]]] = {
    "step": (lr_scheduler.StepLR, {"step_size": 2, "gamma": 0.5}),
    "milestones": (lr_scheduler.MultiStepLR, {"milestones": [1, 4], "gamma": 0.1}),
    "exponential": (lr_scheduler.ExponentialLR, {"gamma": 0.8}),
    "linear": (lr_scheduler.LinearLR, {"start_factor": 0.2, "total_iters": 4}),
    "cosine": (lr_scheduler.CosineAnnealingLR, {"T_max": 5, "eta_min": 0.001}),
    "restarts": (lr_scheduler.CosineAnnealingWarmRestarts, {"T_0": 3, "T_mult": 2}),
    "plateau": (lr_scheduler.ReduceLROnPlateau, {"patience": 1, "factor": 0.5}),
    "one cycle": (lr_scheduler.OneCycleLR, {"max_lr": 0.3, "total_steps": 9}),
    "cyclic": (lr_scheduler.CyclicLR, {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2}),
}


class Model:
    """A layer on each of two owners and one here, one after the other, with twins and optimizers for both."""

    def __init__(self, ps: tc.Client) -> None:
        self.ps = ps

    async def make(self, cls: type[optim.Optimizer] = optim.SGD, **options: Any) -> None:
        self.nets = [await self.ps.module("torch.nn.Linear", 4, 4, owner=owner) for owner in self.ps.owners]
        self.here = nn.Linear(4, 4)
        self.twins = [*[await twin(net, nn.Linear(4, 4)) for net in self.nets], copy.deepcopy(self.here)]
        self.opt = await self.ps.optimizer(cls, self.parameters(), **options)
        self.local_opt = cls(self.local_parameters(), **options)

    def parameters(self) -> list[Any]:
        return [parameter for part in (*self.nets, self.here) for parameter in part.parameters()]

    def local_parameters(self) -> list[nn.Parameter]:
        return [parameter for part in self.twins for parameter in part.parameters()]

    async def propagate(self, ctx: tc.Context, x: torch.Tensor) -> None:
        await ctx.backward((await self.nets[1](torch.tanh(await self.nets[0](self.here(x))))).square().sum())
        self.local_opt.zero_grad()
        self.twins[1](torch.tanh(self.twins[0](self.twins[2](x)))).square().sum().backward()

    async def compare(self, what: str) -> None:
        for net, module in zip(self.nets, self.twins, strict=False):
            await same_state(net, module)
        for parameter, wanted in zip(self.here.parameters(), self.twins[2].parameters(), strict=True):
            same(parameter.detach(), wanted.detach(), what)

    async def compare_gradients(self, ctx: tc.Context) -> None:
        pairs = enumerate(zip(self.here.parameters(), self.twins[2].parameters(), strict=True))
        leaves = {f"local {number}": pair for number, pair in pairs}
        await same_gradients(ctx, zip(self.nets, self.twins, strict=False), leaves)


@pytest.fixture
def model(both: tc.Client) -> Model:
    return Model(both)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", SCHEDULERS)
async def test_learning_rates_change_on_all_owners_and_here_as_they_do_in_torch(model: Model, name: str) -> None:
    cls, options = SCHEDULERS[name]
    await model.make(lr=0.1, momentum=0.9)
    scheduler = await model.ps.scheduler(cls, model.opt, **options)
    local = cls(model.local_opt, **options)
    rates = []
    for number in range(8):
        trains = number in (0, 4, 7)
        if trains:
            async with model.ps.context() as ctx:
                await model.propagate(ctx, torch.randn(3, 4))
                await model.opt.step(ctx)
                model.local_opt.step()
        metric = [1.0 / (number + 1) if number < 3 else 1.0] if name == "plateau" else []
        found = await scheduler.step(*metric)
        local.step(*metric)
        group = model.local_opt.param_groups[0]
        assert found == await scheduler.get_last_lr() == [group["lr"]]
        rates.append(group["lr"])
        if trains:
            for each in (await model.opt.state_dict())["param_groups"], model.opt.local.optimizer.param_groups:
                assert (each[0]["lr"], each[0]["momentum"]) == (group["lr"], group["momentum"])
            await model.compare(f"{name}, step {number}")
    assert len(set(rates)) > 1


async def test_trainers_share_a_scheduler() -> None:
    async with owners("ps0") as (server,), tc.connect(server.address) as one, tc.connect(server.address) as other:
        schedulers = []
        for ps in (one, other):
            net = await ps.module("torch.nn.Linear", 4, 4, name="net")
            opt = await ps.optimizer(optim.SGD, net.parameters(), lr=1.0)
            schedulers.append(await ps.scheduler(lr_scheduler.StepLR, opt, 2, gamma=0.5))
        assert await schedulers[0].step() == [1.0]
        assert await schedulers[1].step() == [0.5]
        assert await schedulers[0].get_last_lr() == [0.5]
        with pytest.raises(tc.errors.NameConflictError):
            await one.scheduler(lr_scheduler.StepLR, opt, 3, gamma=0.5)
        second = await one.scheduler(lr_scheduler.StepLR, opt, 3, gamma=0.5, name="second")
        assert await second.step() == [0.5]
        await opt.set_options(lr=0.25)
        assert await schedulers[1].get_last_lr() == [0.25]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_scheduler_does_not_mind_parts_that_had_no_gradients(model: Model) -> None:
    await model.make(lr=1.0)
    scheduler = await model.ps.scheduler(lr_scheduler.ExponentialLR, model.opt, 0.5)
    async with model.ps.context() as ctx:
        await ctx.backward((await model.nets[0](torch.ones(1, 4))).sum())
        assert await model.opt.step(ctx) == {"ps0": 1, "ps1": 0}
    assert await scheduler.step() == [0.5]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", SCHEDULERS)
async def test_states_of_schedulers_are_torchs(model: Model, name: str) -> None:
    cls, options = SCHEDULERS[name]
    await model.make(lr=0.1, momentum=0.9)
    scheduler = await model.ps.scheduler(cls, model.opt, **options)
    local = cls(model.local_opt, **options)
    async with model.ps.context() as ctx:
        await model.propagate(ctx, torch.ones(1, 4))
        await model.opt.step(ctx)
        model.local_opt.step()
    metric = [1.0] if name == "plateau" else []
    for _ in range(3):
        local.step(*metric)
    await scheduler.load_state_dict(local.state_dict())
    await model.opt.load_state_dict(model.local_opt.state_dict())
    for _ in range(2):
        found = await scheduler.step(*metric)
        local.step(*metric)
        assert found == [model.local_opt.param_groups[0]["lr"]]
        assert model.opt.local.optimizer.param_groups[0]["lr"] == found[0]
    state = await scheduler.state_dict()
    # A Counter travels as the dict that it is.
    assert {key: dict(v) if isinstance(v, dict) else v for key, v in local.state_dict().items()} == state
    again = cls(optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9), **options)
    again.load_state_dict(state)
    assert again.last_epoch == local.last_epoch


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "change",
    [
        {"last_epoch": "late"},
        {"base_lrs": [0.1, 0.1]},
        {"base_lrs": 0.1},
        {"optimizer": 3},
        {"step": None},
        {"gamma": None},
        {"step_size": True},
    ],
    ids=str,
)
async def test_a_state_that_no_scheduler_has_is_refused(model: Model, change: dict[str, Any]) -> None:
    await model.make(lr=0.1)
    opt = await model.ps.optimizer(optim.SGD, [p for net in model.nets for p in net.parameters()], lr=0.1)
    scheduler = await model.ps.scheduler(lr_scheduler.StepLR, opt, 2)
    state = await scheduler.state_dict()
    with pytest.raises(tc.errors.InvalidArgumentError):
        await scheduler.load_state_dict({**state, **change})
    with pytest.raises(tc.errors.InvalidArgumentError):
        await scheduler.load_state_dict({})
    assert await scheduler.state_dict() == state
    assert await scheduler.step() == [0.1]


@pytest.mark.asyncio(loop_scope="module")
async def test_an_invalid_scheduler_is_refused(model: Model) -> None:
    await model.make(lr=0.1)
    remote = await model.ps.optimizer(optim.SGD, model.nets[0].parameters(), lr=0.1)
    only_local = await model.ps.optimizer(optim.SGD, model.here.parameters(), lr=0.1)
    for cls, opt, args, error in (
        (lr_scheduler.StepLR, model.opt, (), tc.errors.InvalidArgumentError),
        (lr_scheduler.StepLR, remote, (), tc.errors.InvalidArgumentError),
        ("torch.optim.SGD", remote, (), tc.errors.NotAllowedError),
        (lr_scheduler.OneCycleLR, model.opt, (-1.0, -5), tc.errors.InvalidArgumentError),
        (lr_scheduler.StepLR, only_local, (2,), tc.errors.InvalidArgumentError),
        ("torch.optim.lr_scheduler.StepLR", model.opt, (2,), tc.errors.InvalidArgumentError),
    ):
        with pytest.raises(error):
            await model.ps.scheduler(cls, opt, *args)
    assert model.opt.local.optimizer.param_groups[0].keys() == model.local_opt.param_groups[0].keys()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf, 0.5, 3])
@pytest.mark.parametrize("max_norm", [0.1, 1000.0], ids=["clipped", "left"])
async def test_gradients_are_clipped_by_their_common_norm(model: Model, norm_type: float, max_norm: float) -> None:
    await model.make(lr=0.1)
    async with model.ps.context() as ctx:
        await model.propagate(ctx, torch.randn(3, 4))
        before = await ctx.get_gradients()
        norm = await ctx.clip_grad_norm(model.parameters(), max_norm, norm_type)
        wanted = nn.utils.clip_grad_norm_(model.local_parameters(), max_norm, norm_type)
        same(norm, wanted, "norm")
        assert identical(await ctx.get_gradients(), before) is (wanted.item() < max_norm)
        await model.compare_gradients(ctx)
        await model.opt.step(ctx)
        model.local_opt.step()
    await model.compare("after the step")


@pytest.mark.asyncio(loop_scope="module")
async def test_clipping_takes_the_parameters_it_is_given(model: Model) -> None:
    await model.make(lr=0.1)
    async with model.ps.context() as ctx:
        await model.propagate(ctx, torch.randn(3, 4))
        some = [model.nets[1].parameter("weight"), model.here.bias]
        same(
            await ctx.clip_grad_norm(some, 0.1),
            nn.utils.clip_grad_norm_([model.twins[1].weight, model.twins[2].bias], 0.1),
            "norm",
        )
        # Clipped once more, to what it has by now.
        same(await ctx.clip_grad_norm(iter(some), 1.0), torch.tensor(0.1), "norm")
        await model.compare_gradients(ctx)
        assert await ctx.clip_grad_norm([], 1.0) == 0.0
    async with model.ps.context() as ctx:
        assert await ctx.clip_grad_norm(model.parameters(), 1.0) == 0.0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("part", [0, 2], ids=["remote", "local"])
async def test_powers_that_are_too_large_make_an_infinite_norm_as_in_torch(model: Model, part: int) -> None:
    await model.make(lr=0.1)
    x = torch.full((1, 4), 1e5)
    async with model.ps.context() as ctx:
        await ctx.backward((await model.nets[0](x) if part == 0 else model.here(x)).sum())
        model.twins[part](x).sum().backward()
        norm = await ctx.clip_grad_norm(model.parameters(), 1.0, 100.0)
        assert norm == nn.utils.clip_grad_norm_(model.local_parameters(), 1.0, 100.0) == math.inf
        await model.compare_gradients(ctx)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
@pytest.mark.parametrize("value", [math.nan, math.inf])
async def test_norms_that_are_no_numbers_scale_as_in_torch(model: Model, value: float, norm_type: float) -> None:
    await model.make(lr=0.1)
    async with model.ps.context() as ctx:
        await ctx.backward((await model.nets[0](torch.tensor([[value, 1.0, 1.0, 1.0]]))).sum())
        model.twins[0](torch.tensor([[value, 1.0, 1.0, 1.0]])).sum().backward()
        # The one without a number comes last.
        norm = await ctx.clip_grad_norm(model.parameters()[::-1], 1.0, norm_type)
        wanted = nn.utils.clip_grad_norm_(model.local_parameters(), 1.0, norm_type)
        assert norm.isnan() if wanted.isnan() else norm == wanted
        found = await ctx.get_gradients()
        for name, parameter in model.twins[0].named_parameters():
            torch.testing.assert_close(found[model.nets[0].parameter(name)], parameter.grad, equal_nan=True)


async def test_gradients_as_rows_are_clipped_as_if_they_were_dense() -> None:
    async with training() as (_, ps):
        table = await ps.module("torch.nn.Embedding", 5, 3, sparse=True)
        local = nn.Embedding(5, 3)
        local.load_state_dict(await table.state_dict())
        ids = torch.tensor([1, 1, 4])
        async with ps.context() as ctx:
            await ctx.backward((await table(ids)).square().sum())
            local(ids).square().sum().backward()
            norm = await ctx.clip_grad_norm(table.parameters(), 0.5)
            same(norm, nn.utils.clip_grad_norm_(local.parameters(), 0.5), "norm")
            found = (await ctx.get_gradients())[table.parameter("weight")]
            assert found.is_sparse
            same(found.to_dense(), local.weight.grad, "gradient")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("max_norm,norm_type", [(0.0, 2.0), (-1.0, 2.0), (1.0, 0.0), (1.0, -2.0), (math.nan, 2.0)])
async def test_norms_that_are_not_positive_are_refused(model: Model, max_norm: float, norm_type: float) -> None:
    await model.make(lr=0.1)
    async with model.ps.context() as ctx:
        await model.propagate(ctx, torch.randn(3, 4))
        before = await ctx.get_gradients()
        with pytest.raises(tc.errors.InvalidArgumentError, match="must be positive"):
            await ctx.clip_grad_norm(model.parameters(), max_norm, norm_type)
        assert identical(await ctx.get_gradients(), before)


async def test_the_repr_of_a_scheduler_says_what_it_is_and_where(ps: tc.Client) -> None:
    net = await ps.module("torch.nn.Linear", 4, 2, name="net")
    opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
    named = await ps.scheduler(lr_scheduler.StepLR, opt, 1, name="schedule")
    assert repr(named) == "<DistributedScheduler torch.optim.lr_scheduler.StepLR 'schedule' on ps0>"
