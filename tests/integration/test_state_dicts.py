"""States of modules and optimizers are torch's own, in both directions, and are taken over wholly or not at all."""

from __future__ import annotations

import copy
import io
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from tests import autograd_models
from tests.training import MODELS, identical, same, same_state, training, twin

MAKES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "linear": ("torch.nn.Linear", (4, 3)),
    "LSTM": ("torch.nn.LSTM", (4, 3)),
    "statistics": ("torch.nn.BatchNorm1d", (4,)),
    "transformer": ("torch.nn.TransformerEncoderLayer", (4, 2, 8)),
    "tied": (f"{MODELS}.Tied", (5, 4)),
    "computed weights": (f"{MODELS}.Normed", (4,)),
    "one piece of memory": (f"{MODELS}.Flat", (4,)),
    "extra": (f"{MODELS}.Extra", (4,)),
}
Step = Callable[[torch.Tensor], Awaitable[None]]


def _local(cls: str, args: tuple[Any, ...]) -> nn.Module:
    name = cls.rpartition(".")[2]
    made: nn.Module = getattr(autograd_models if cls.startswith(MODELS) else nn, name)(*args)
    return made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("make", MAKES)
async def test_states_of_modules_go_both_ways(both: tc.Client, make: str) -> None:
    cls, args = MAKES[make]
    net = await both.module(cls, *args)
    # From the owner, through a file, into plain torch.
    file = io.BytesIO()
    torch.save(await net.state_dict(), file)
    file.seek(0)
    local = _local(cls, args)
    assert local.load_state_dict(torch.load(file, weights_only=True)) == ([], [])
    assert identical(dict(local.state_dict()), await net.state_dict())
    # And back, with other numbers.
    other = _local(cls, args)
    assert not identical(dict(other.state_dict()), await net.state_dict()) or make == "statistics"
    assert await net.load_state_dict(other.state_dict()) == ([], [])
    assert identical(dict(other.state_dict()), await net.state_dict())


async def test_tied_parameters_travel_once_and_stay_tied() -> None:
    async with training() as ((owner,), ps):
        net = await ps.module(f"{MODELS}.Tied", 3000, 40)
        nbytes = 4 * 3000 * 40

        def carried() -> int:
            return sum(each.received + each.sent for each in owner.engine.counters.traffic.values())

        before = carried()
        state = await net.state_dict()
        assert state["head.weight"] is state["table.weight"]
        assert nbytes < carried() - before < 1.1 * nbytes
        before, local = carried(), autograd_models.Tied(3000, 40)
        assert await net.load_state_dict(local.state_dict()) == ([], [])
        assert nbytes < carried() - before < 1.1 * nbytes
        assert identical(dict(local.state_dict()), await net.state_dict())


async def test_parts_of_one_piece_of_memory_travel_as_what_they_are() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 4, 4, bias=False)
        memory = torch.arange(32.0)
        for part in (
            memory[:16].view(4, 4),
            memory[16:].view(4, 4),
            memory[:16].view(4, 4).t(),
            memory[::2].view(4, 4),
        ):
            await net.load_state_dict({"weight": part})
            assert torch.equal((await net.state_dict())["weight"], part)


async def test_an_optimizer_changes_no_tensor_for_several_parameters() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 2, 2)
        opt = await ps.optimizer(optim.Adam, net.parameters(), lr=0.1)

        async def step() -> None:
            async with ps.context() as ctx:
                await ctx.backward((await net(torch.ones(1, 2))).sum(), step=opt)

        await step()
        state = await opt.state_dict()
        state["state"][1]["step"] = state["state"][0]["step"]
        await opt.load_state_dict(state)
        await step()
        await step()
        after = (await opt.state_dict())["state"]
        assert [float(after[i]["step"]) for i in (0, 1)] == [3.0, 3.0]


async def test_a_buffer_whose_elements_share_memory_keeps_a_state_from_being_loaded_half() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Expanded")
        before = await net.state_dict()
        with pytest.raises(tc.errors.InvalidArgumentError, match="does not fit"):
            await net.load_state_dict({name: value + 1 for name, value in before.items()})
        assert identical(before, await net.state_dict())


async def test_a_state_is_a_copy() -> None:
    async with training() as (_, ps):
        spread = Spread(ps, local=True, grouped=False)
        await spread.make(optim.Adam, lr=0.1)
        await spread.step(torch.ones(1, 4))
        states = [await each.state_dict() for each in (*spread.nets, spread.opt)]
        kept = copy.deepcopy(states)
        await spread.step(torch.ones(1, 4))
        assert identical(states, kept)
        # One that was loaded is, too.
        await spread.opt.load_state_dict(kept[1])
        await spread.step(torch.ones(1, 4))
        assert identical(states, kept)


async def test_a_loaded_module_goes_on_training() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 4, 3)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        local = nn.Linear(4, 3)
        await net.load_state_dict(local.state_dict())
        await _pass(ps, opt, net, torch.ones(1, 4))
        with torch.no_grad():
            local.weight -= 0.1
            local.bias -= 0.1
        await same_state(net, local)


async def test_numbers_are_cast_as_in_torch() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.BatchNorm1d", 4)
        state = {name: value.double() + 0.5 for name, value in nn.BatchNorm1d(4).state_dict().items()}
        state["num_batches_tracked"] = torch.tensor(3)
        local = nn.BatchNorm1d(4)
        local.load_state_dict(state)
        await net.load_state_dict(state)
        assert identical(await net.state_dict(), dict(local.state_dict()))


@pytest.mark.parametrize("strict", [True, False])
async def test_a_state_that_is_not_strict_may_have_less_and_more(strict: bool) -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 4, 3)
        before = await net.state_dict()
        state = {"bias": torch.ones(3), "scale": torch.ones(1)}
        if strict:
            with pytest.raises(tc.errors.InvalidArgumentError, match=r"missing \['weight'\], unexpected \['scale'\]"):
                await net.load_state_dict(state)
            assert identical(await net.state_dict(), before)
        else:
            assert await net.load_state_dict(state, strict=False) == (["weight"], ["scale"])
            assert identical(await net.state_dict(), {**before, "bias": torch.ones(3)})


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {"inner.weight": torch.zeros(4, 3)},
        {"inner.weight": torch.zeros(4)},
        {"inner.bias": 0.0},
        {"inner.bias": None},
        {"inner.bias": torch.zeros(4, dtype=torch.complex64)},
        {"_extra_state": {"text": "refuse this"}},
        {"_extra_state": {}},
    ],
    ids=lambda change: " ".join(map(str, change)),
)
async def test_a_state_that_does_not_fit_changes_nothing(both: tc.Client, change: dict[str, Any], strict: bool) -> None:
    net = await both.module(f"{MODELS}.Extra", 4)
    before = await net.state_dict()
    with pytest.raises(tc.errors.InvalidArgumentError):
        await net.load_state_dict({**autograd_models.Extra(4).state_dict(), **change}, strict=strict)
    assert identical(await net.state_dict(), before)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("state", [None, [], "weights", torch.zeros(2)])
async def test_an_invalid_state_is_refused(both: tc.Client, state: Any) -> None:
    net = await both.module("torch.nn.Linear", 4, 3)
    opt = await both.optimizer(optim.SGD, net.parameters(), lr=0.1)
    for each in (net, opt):
        before = await each.state_dict()
        with pytest.raises(tc.errors.InvalidArgumentError):
            await each.load_state_dict(state)
        assert identical(await each.state_dict(), before)


class Spread:
    """A layer on each owner and perhaps one here, with one optimizer; and the same in plain torch."""

    def __init__(self, ps: tc.Client, local: bool, grouped: bool) -> None:
        self.ps, self.local, self.grouped = ps, local, grouped

    async def make(self, cls: type[optim.Optimizer], **options: Any) -> None:
        self.nets = [await self.ps.module("torch.nn.Linear", 4, 4, owner=owner) for owner in self.ps.owners]
        self.here = [nn.Linear(4, 4)] if self.local else []
        self.twins = [*[await twin(net, nn.Linear(4, 4)) for net in self.nets], *copy.deepcopy(self.here)]
        self.opt = await self.ps.optimizer(cls, self._described([*self.nets, *self.here]), **options)
        self.plain = self.plain_optimizer(cls, **options)

    def plain_optimizer(self, cls: type[optim.Optimizer], **options: Any) -> optim.Optimizer:
        return cls(self._described(self.twins), **options)

    def _described(self, parts: list[Any]) -> list[Any]:
        named = [dict(part.named_parameters()) for part in parts]
        if not self.grouped:
            return [parameter for each in named for parameter in each.values()]
        return [
            {"params": [each["bias"] for each in reversed(named)], "lr": 0.05},
            {"params": [named[0]["weight"]], "weight_decay": 0.1},
            *([{"params": [each["weight"] for each in named[1:]]}] if named[1:] else []),
        ]

    async def step(self, x: torch.Tensor) -> None:
        async with self.ps.context() as ctx:
            y = x
            for part in (*self.nets, *self.here):
                y = torch.tanh(part(y) if isinstance(part, nn.Module) else await part(y))
            await ctx.backward(y.sum())
            await self.opt.step(ctx)

    def plain_step(self, x: torch.Tensor) -> None:
        self.plain.zero_grad()
        for part in self.twins:
            x = torch.tanh(part(x))
        x.sum().backward()
        self.plain.step()

    async def compare(self) -> None:
        for net, module in zip(self.nets, self.twins, strict=False):
            await same_state(net, module)
        for module, wanted in zip(self.here, self.twins[len(self.nets) :], strict=True):
            for name, value in module.state_dict().items():
                same(value, wanted.state_dict()[name], f"local {name}")


SPREADS: dict[str, tuple[tuple[str, ...], bool, bool]] = {
    "one owner": (("ps0",), False, False),
    "two owners, groups": (("ps0", "ps1"), False, True),
    "one owner and here, groups": (("ps0",), True, True),
    "two owners and here": (("ps0", "ps1"), True, False),
}
"""The owners, whether there is a part here, and whether the parameters are in groups."""

OPTIMIZERS: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "momentum": (optim.SGD, {"momentum": 0.9}),
    "Adam": (optim.Adam, {"amsgrad": True}),
    "Adagrad": (optim.Adagrad, {}),
    "RMSprop": (optim.RMSprop, {}),
}


# Where the parts are does not matter to an optimizer: one of them is tried with all, the others with two.
@pytest.mark.parametrize(
    ("optimizer", "spread"),
    [
        *(("Adam", spread) for spread in SPREADS),
        *(
            (name, spread)
            for name in ("momentum", "RMSprop")
            for spread in ("two owners, groups", "two owners and here")
        ),
        *(("Adagrad", spread) for spread in ("one owner", "one owner and here, groups")),
    ],
)
async def test_states_of_optimizers_go_both_ways(optimizer: str, spread: str) -> None:
    (cls, options), (names, local, grouped) = OPTIMIZERS[optimizer], SPREADS[spread]
    async with training(*names) as (_, ps):
        parts = Spread(ps, local, grouped)
        await parts.make(cls, lr=0.1, **options)
        assert identical(await parts.opt.state_dict(), parts.plain.state_dict())
        for _ in range(2):
            x = torch.randn(3, 4)
            await parts.step(x)
            parts.plain_step(x)
        state = await parts.opt.state_dict()
        wanted = parts.plain.state_dict()
        assert state["param_groups"] == wanted["param_groups"]
        assert state["state"].keys() == wanted["state"].keys()
        for number, entries in wanted["state"].items():
            for key, value in entries.items():
                same(state["state"][number][key], value, f"{key} of {number}")
        # Into a new plain optimizer, which goes on like the remote one.
        parts.plain = parts.plain_optimizer(cls, lr=0.5)
        parts.plain.load_state_dict(state)
        x = torch.randn(3, 4)
        await parts.step(x)
        parts.plain_step(x)
        await parts.compare()
        # And back: the remote one forgets a step and other options, and goes on like the plain one.
        kept, modules = copy.deepcopy(parts.plain.state_dict()), [copy.deepcopy(each) for each in parts.twins]
        await parts.step(torch.randn(3, 4))
        await parts.opt.set_options(lr=0.7)
        for net, module in zip(parts.nets, modules, strict=False):
            await net.load_state_dict(module.state_dict())
        for module, wanted_module in zip(parts.here, modules[len(names) :], strict=True):
            module.load_state_dict(wanted_module.state_dict())
        await parts.opt.load_state_dict(kept)
        assert identical(await parts.opt.state_dict(), kept)
        x = torch.randn(3, 4)
        await parts.step(x)
        parts.plain_step(x)
        await parts.compare()


async def test_a_state_may_move_to_other_owners() -> None:
    async with training("ps0", "ps1") as (_, ps):
        spread = Spread(ps, True, False)
        await spread.make(optim.Adam, lr=0.1)
        await spread.step(torch.randn(3, 4))
        together = [await ps.module("torch.nn.Linear", 4, 4) for _ in range(3)]
        opt = await ps.optimizer(optim.Adam, [p for net in together for p in net.parameters()], lr=0.5)
        await opt.load_state_dict(await spread.opt.state_dict())
        assert identical(await opt.state_dict(), await spread.opt.state_dict())


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("where", [0, 2, 4], ids=["first owner", "second owner", "here"])
@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries.update(exp_avg=torch.zeros(3, 3)),
        lambda entries: entries.update(exp_avg="zeros"),
        lambda entries: entries.pop("exp_avg_sq"),
        lambda entries: entries.pop("step"),
    ],
    ids=["another shape", "another kind", "a missing entry", "no count of steps"],
)
async def test_a_state_that_does_not_fit_one_part_changes_none(
    both: tc.Client, where: int, change: Callable[[Any], Any]
) -> None:
    spread = Spread(both, True, False)
    await spread.make(optim.Adam, lr=0.1)
    await spread.step(torch.randn(3, 4))
    before = await spread.opt.state_dict()
    await spread.step(torch.randn(3, 4))
    other = await spread.opt.state_dict()
    change(before["state"][where])
    with pytest.raises(tc.errors.InvalidArgumentError):
        await spread.opt.load_state_dict(before)
    assert identical(await spread.opt.state_dict(), other)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("state"),
        lambda state: state.pop("param_groups"),
        lambda state: state["param_groups"].append(state["param_groups"][0]),
        lambda state: state["param_groups"][0]["params"].pop(),
        lambda state: state["param_groups"][0].pop("params"),
        lambda state: state["param_groups"][0].pop("betas"),
        lambda state: state["param_groups"][0].update(lr="fast"),
        lambda state: state["state"].update({9: {}}),
        lambda state: state["state"].update({1: 3}),
        lambda state: state.update(state=[]),
    ],
    ids=range(10),
)
@pytest.mark.parametrize("remote", [True, False], ids=["remote", "local"])
async def test_a_state_of_another_form_is_refused(both: tc.Client, change: Callable[[Any], Any], remote: bool) -> None:
    net = await both.module("torch.nn.Linear", 4, 3)
    local = nn.Linear(4, 3)
    opt = await both.optimizer(optim.Adam, (net if remote else local).parameters(), lr=0.1)
    async with both.context() as ctx:
        x = torch.ones(1, 4)
        await ctx.backward((await net(x) if remote else local(x)).sum())
        await opt.step(ctx)
    before, state = await opt.state_dict(), await opt.state_dict()
    change(state)
    with pytest.raises(tc.errors.InvalidArgumentError):
        await opt.load_state_dict(state)
    assert identical(await opt.state_dict(), before)


async def _pass(ps: tc.Client, opt: tc.DistributedOptimizer, net: tc.RemoteModule, x: torch.Tensor) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await net(x)).sum())
        await opt.step(ctx)
