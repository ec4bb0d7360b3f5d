"""Recorded calls in torch's autograd graph: hooks, modes, errors, branches that run together, graphs that are freed."""

from __future__ import annotations

import asyncio
import copy
import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import trainer_client as tc
from tests.integration.support import COUNTER
from tests.ps_wire.codec.test_trees import Turned
from tests.training import MODELS, pins, same, same_gradients, training, twin


@pytest.mark.parametrize(
    ("names", "together", "graded"),
    [
        *((("ps0",), True, True), (("ps0",), False, False)),
        *((("ps0", "ps1"), True, False), (("ps0", "ps1"), False, True)),
    ],
)
async def test_independent_branches_run_their_backward_together(
    names: tuple[str, ...], together: bool, graded: bool, request: pytest.FixtureRequest
) -> None:
    async with training(*names) as (_, ps):
        meeting = request.node.name
        branches = [
            await ps.module(f"{MODELS}.MeetsOnTheWayBack", 3, meeting, 3, owner=names[number % len(names)])
            for number in range(3)
        ]
        x = torch.ones(2, 3, requires_grad=graded)
        async with ps.context() as ctx:
            if together:
                parts = await asyncio.gather(*(branch(x) for branch in branches))
            else:
                parts = [await branch(x) for branch in branches]
            # Each backward waits for the others; alone it gives up with an error.
            await ctx.backward(torch.stack(list(parts)).sum())
            assert len(await ctx.get_gradients()) == 6 + graded


async def test_hooks_see_the_gradients_of_local_autograd() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 4, 4)
        local = await twin(net, nn.Linear(4, 4))
        x = torch.randn(2, 4)
        seen: list[dict[str, torch.Tensor | None]] = []
        async with ps.context() as ctx:
            for remote in (False, True):
                gradients: dict[str, torch.Tensor | None] = {}
                leaf = x.clone().requires_grad_()
                before = leaf.sin()
                received = await net(before) if remote else local(before)
                after = received.square()
                for name, tensor in {"leaf": leaf, "before": before, "received": received, "after": after}.items():
                    tensor.register_hook(lambda gradient, name=name, into=gradients: into.update({name: gradient}))
                received.register_hook(lambda gradient: gradient * 3)
                received.retain_grad()
                if remote:
                    await ctx.backward(after.sum())
                else:
                    after.sum().backward()
                seen.append(
                    {**gradients, "retained": received.grad, "all": ctx.gradient(leaf) if remote else leaf.grad}
                )
            assert len(seen[0]) == 6
            for name, wanted in seen[0].items():
                same(seen[1][name], wanted, name)


@pytest.mark.parametrize("shape", [(1,), (1, 1), ()], ids=str)
async def test_gradients_of_a_single_number_travel(shape: tuple[int, ...]) -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Identity")
        x = torch.full(shape, 2.0, requires_grad=True)
        async with ps.context() as ctx:
            # Torch expands the gradient of a sum, so that its strides are 0.
            await ctx.backward(3 * (await net(x)).sum())
            same(ctx.gradient(x), torch.full(shape, 3.0), "input")


async def test_calls_outside_a_context_are_not_recorded() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 4, 4)
        local = await twin(net, nn.Linear(4, 4))
        x = torch.randn(2, 4, requires_grad=True)
        y = await net(x)
        same(y, local(x).detach(), "output")
        assert not y.requires_grad
        assert (await ps.status()).contexts == 0


async def test_whether_a_call_is_recorded_is_decided_when_it_is_made() -> None:
    async with training() as ((server,), ps):
        net = await ps.module("torch.nn.Linear", 4, 4)
        x = torch.randn(2, 4, requires_grad=True)
        async with ps.context() as ctx:
            with torch.no_grad():
                without = net(x)
            assert not (await without).requires_grad
            assert (await ps.status()).contexts == 0
            recorded = net(x)
            with torch.no_grad():
                y = await recorded
            assert y.requires_grad
            await ctx.backward(y.sum())
            assert len(await ctx.get_gradients()) == 3
        assert pins(server) == 0


async def test_the_error_of_plain_backward_names_ctx_backward() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 4, 4)
        local = await twin(net, nn.Linear(4, 4))
        x = torch.randn(2, 4)
        async with ps.context() as ctx:
            loss = (await net(x)).sum()
            with pytest.raises(RuntimeError, match=r"call ctx\.backward\(loss\)"):
                loss.backward(retain_graph=True)
            assert await ctx.get_gradients() == {}
            await ctx.backward(loss)
            local(x).sum().backward()
            await same_gradients(ctx, [(net, local)])


@pytest.mark.parametrize("inputs", [True, False], ids=["inputs want gradients", "inputs want none"])
async def test_an_exception_in_a_remote_backward_arrives_typed_and_leaves_the_context_usable(inputs: bool) -> None:
    async with training("ps0", "ps1") as (_, ps):
        first = await ps.module("torch.nn.Linear", 4, 4)
        second = await ps.module(f"{MODELS}.Explodes", 4, owner="ps1")
        twins = [await twin(first, nn.Linear(4, 4)), (await twin(second, _local_explodes()))]
        before, after = nn.Linear(4, 4), nn.Linear(4, 1)
        x = torch.randn(2, 4)
        held = torch.full_like(before.weight, 7.0)
        before.weight.grad = held

        async def forward(explode: bool) -> torch.Tensor:
            deep = await first(before(x))
            return after(await second(deep if inputs else x, explode=explode) + deep).sum()

        async with ps.context() as ctx:
            with pytest.raises(tc.errors.RemoteError, match="this backward is broken") as caught:
                await ctx.backward(await forward(True))
            assert caught.value.remote_type == "builtins.ArithmeticError"
            assert "in backward" in caught.value.remote_traceback
            assert before.weight.grad is held and after.weight.grad is None
            assert not any(isinstance(key, torch.Tensor) for key in await ctx.get_gradients())
        async with ps.context() as ctx:
            with pytest.raises(tc.errors.RemoteError):
                await ctx.backward((await second(x, explode=True)).sum())
            assert await ctx.get_gradients() == {}
            await ctx.backward(await forward(False))
            before.weight.grad = None
            deep = twins[0](before(x))
            after(twins[1](deep if inputs else x) + deep).sum().backward()
            await same_gradients(
                ctx,
                zip([first, second], twins, strict=True),
                {
                    f"local {n}": (tensor, tensor)
                    for n, tensor in enumerate([*before.parameters(), *after.parameters()])
                },
            )


async def test_an_exception_in_a_local_hook_is_the_one_that_is_raised() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 4, 4)
        local = await twin(net, nn.Linear(4, 4))
        x = torch.randn(2, 4, requires_grad=True)

        def broken(gradient: torch.Tensor) -> None:
            raise LookupError("the hook is broken")

        async with ps.context() as ctx:
            middle = x.sin()
            handle = middle.register_hook(broken)
            loss = (await net(middle)).sum() + x.sum()
            with pytest.raises(LookupError, match="the hook is broken"):
                await ctx.backward(loss, retain_graph=True)
            assert ctx.gradient(x) is None and x.grad is None
            handle.remove()
        async with ps.context() as ctx:
            await ctx.backward((await net(x.sin())).sum())
            local(x.sin()).sum().backward()
            await same_gradients(ctx, [(net, local)], {"input": (x, x)})


async def test_errors_of_torch_are_those_of_local_autograd() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.Tied", 5, 4)
        ids = torch.tensor([1, 2])
        async with ps.context() as ctx:
            y = await net(ids)
            with pytest.raises(RuntimeError, match="grad can be implicitly created only for scalar outputs"):
                await ctx.backward(y)
            with pytest.raises(RuntimeError, match="does not require grad"):
                await ctx.backward(torch.ones(1))
            await ctx.backward(y.sum())
            with pytest.raises(tc.errors.RemoteError, match="backward through the graph a second time") as caught:
                await ctx.backward(y.sum())
            assert caught.value.remote_type == "builtins.RuntimeError"


async def test_a_module_that_overwrites_saved_tensors_gets_an_error() -> None:
    async with training() as (_, ps):
        net = await ps.module(f"{MODELS}.SpoilsItself", 4)
        async with ps.context() as ctx:
            y = await net(torch.ones(2, 4))
            with pytest.raises(tc.errors.RemoteError, match="modified by an inplace operation"):
                await ctx.backward(y.sum())


async def test_a_module_that_borrows_another_trains_both() -> None:
    async with training() as (_, ps):
        outer, inner = await ps.module(f"{MODELS}.Borrows", 4), await ps.module("torch.nn.Linear", 4, 4)
        first = await twin(inner, nn.Linear(4, 4))
        second = nn.Linear(4, 4)
        second.load_state_dict({name.removeprefix("inner."): v for name, v in (await outer.state_dict()).items()})
        x = torch.randn(2, 4, requires_grad=True)
        async with ps.context() as ctx:
            # Borrowed and called at once.
            loss = ((await outer(x, inner)) * (await inner(x))).sum()
            await ctx.backward(loss)
            found = await ctx.get_gradients()
        (second(torch.tanh(first(x))) * first(x)).sum().backward()
        assert len(found) == 5
        for name, parameter in first.named_parameters():
            same(found[inner.parameter(name)], parameter.grad, name)
        for name, parameter in second.named_parameters():
            same(found[outer.parameter(f"inner.{name}")], parameter.grad, name)
        same(found[x], x.grad, "input")


async def test_gradients_of_local_leaves_add_up_in_the_context_and_nowhere_else() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 4, 4)
        x = torch.randn(2, 4, requires_grad=True)
        held = x.grad = torch.full_like(x, 7.0)
        async with ps.context() as ctx:
            await ctx.backward((await net(x)).sum())
            once = ctx.gradient(x)
            assert once is not None
            await ctx.backward((await net(x)).sum())
            same(ctx.gradient(x), 2 * once, "two passes")
            same((await ctx.get_gradients())[x], 2 * once, "two passes")
        assert x.grad is held and torch.equal(held, torch.full_like(x, 7.0))


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("view", [False, True], ids=["gradients", "views of buckets"])
async def test_distributed_data_parallel_is_a_local_part_like_any_other(view: bool) -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 4, 4)
        local = await twin(net, nn.Linear(4, 4))
        plain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        reference = copy.deepcopy(plain)
        parallel = DistributedDataParallel(plain, gradient_as_bucket_view=view)
        # The second context, because its buckets are rebuilt once, in its second pass.
        for _ in range(2):
            reference.zero_grad()
            local.zero_grad()
            async with ps.context() as ctx:
                for _ in range(3):
                    x = torch.randn(5, 4)
                    await ctx.backward((await net(parallel(x))).square().sum())
                    local(reference(x)).square().sum().backward()
                pairs = zip(plain.parameters(), reference.parameters(), strict=True)
                await same_gradients(ctx, [(net, local)], {f"local {n}": pair for n, pair in enumerate(pairs)})


async def test_checkpointed_local_parts_get_their_gradients() -> None:
    async with training() as (_, ps):
        net = await ps.module("torch.nn.Linear", 4, 4)
        local = await twin(net, nn.Linear(4, 4))
        part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        x = torch.randn(2, 4)
        async with ps.context() as ctx:
            await ctx.backward((await net(checkpoint(part, x, use_reentrant=False))).sum())
            local(part(x)).sum().backward()
            await same_gradients(ctx, [(net, local)], {name: (p, p) for name, p in part.named_parameters()})


@pytest.mark.parametrize(
    ("cls", "use"),
    [
        *((cls, "propagated") for cls in ("torch.nn.LSTM", "torch.nn.Linear", f"{MODELS}.Normed", f"{MODELS}.Watched")),
        *((cls, use) for cls in ("torch.nn.Linear", f"{MODELS}.Watched") for use in ("awaited", "never awaited")),
    ],
)
async def test_nothing_of_a_pass_outlives_it(cls: str, use: str) -> None:
    async with training() as ((server,), ps):
        net = await ps.module(cls, *([4, 4] if cls.startswith("torch") else [4]))
        traces: list[weakref.ref[torch.Tensor]] = []
        gc.collect()
        # Reference counts alone must do: the collector comes late, and does not see through torch's graph.
        gc.disable()
        try:
            for _ in range(8):
                await _pass(ps, net, use, traces)
            await ps.status()
            # The last pass may still be held by what asyncio runs next.
            assert [trace() for trace in traces[:-1]] == [None] * 7
        finally:
            gc.enable()
        await net.forward(torch.ones(2, 4))
        assert (await ps.status()).contexts == 0
        assert pins(server) == 0


async def _pass(ps: tc.Client, net: tc.RemoteModule, use: str, traces: list[weakref.ref[torch.Tensor]]) -> None:
    leaf = torch.ones(2, 4, requires_grad=True)
    traces.append(weakref.ref(leaf))
    async with ps.context() as ctx:
        pending = net(leaf.sin())
        if use == "never awaited":
            while not pending.done():
                await ps.status()
            return
        result = await pending
        if use == "propagated":
            await ctx.backward((result[0] if isinstance(result, tuple) else result).sum())


def _local_explodes() -> nn.Module:
    module = nn.Module()
    module.inner = nn.Linear(4, 4)
    module.forward = lambda x: module.inner(x)  # type: ignore[method-assign]
    return module


async def test_gradients_go_to_the_right_results_in_a_container_with_a_codec_of_its_own(ps: tc.Client) -> None:
    counter, x = await ps.create(COUNTER), torch.ones(3, requires_grad=True)
    async with ps.context() as ctx:
        found = await counter.echo(Turned(2 * x, 10 * x))
        assert torch.equal(found.second, 10 * x)
        await ctx.backward((found.first + 100 * found.second).sum())
        assert torch.equal((await ctx.get_gradients())[x], torch.full((3,), 1002.0))
