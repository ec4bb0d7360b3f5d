"""What open contexts and results that stay on an owner hold is bounded for each trainer."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest
import torch

import trainer_client as tc
from ps_service.engine import Engine
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire.limits import MIB, Limits
from tests.integration import held_models
from tests.waiting import until

COUNT = 64 * 1024
X = torch.randn(COUNT // 64, 64)
"""A quarter of a MiB."""


@asynccontextmanager
async def owner(limit: int = MIB) -> AsyncIterator[tuple[Server, tc.Client]]:
    engine = Engine("ps0", AllowList([held_models]), limits=Limits(max_context_bytes=limit))
    async with Server(engine) as server, tc.connect(server.address) as ps:
        yield server, ps


async def until_nothing_is_held(server: Server) -> None:
    """Waits until what threads of the owner have let go of is collected."""

    def nothing() -> bool:
        gc.collect()
        return server.engine.held.nbytes == 0

    await until(nothing)


async def filled(net: tc.RemoteModule) -> list[torch.Tensor]:
    """Results of calls, up to the one that is refused."""
    results: list[torch.Tensor] = []
    with pytest.raises(tc.errors.OverloadedError, match="max_context_bytes"):
        for _ in range(100):
            results.append(await net(X))
    return results


async def one_pass(ps: tc.Client, net: tc.RemoteModule) -> None:
    async with ps.context() as ctx:
        await ctx.backward((await net(X)).sum())


async def test_calls_are_refused_and_backwards_make_space() -> None:
    async with owner() as (server, ps):
        net = await ps.module(torch.nn.Linear, 64, 64)
        sgd = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            results = await filled(net)
            assert len(results) == 4
            assert MIB <= server.engine.held.nbytes < MIB + X.nbytes
            assert (await ps.status()).context_bytes == server.engine.held.nbytes
            # What records nothing goes on.
            with torch.no_grad():
                await net(X)
            await ctx.backward(results.pop().sum())
            results.append(await net(X))
            await ctx.backward(sum(each.sum() for each in results))  # type: ignore[arg-type]
            await sgd.step(ctx)
            # Its gradients are still there.
            gradients = sum(each.nbytes for each in (await ctx.get_gradients()).values())
            assert server.engine.held.nbytes == gradients == 64 * 65 * 4
        await until_nothing_is_held(server)
        assert server.engine.held.refusals == 1


async def test_the_end_of_a_context_and_of_a_session_makes_space() -> None:
    async with owner() as (server, ps):
        net = await ps.module(torch.nn.Linear, 64, 64, name="net")
        async with ps.context():
            await filled(net)
        async with tc.connect(server.address) as other:
            theirs = await other.attach("net")
            async with other.context():
                await filled(theirs)
                # The other trainer is not concerned.
                await asyncio.create_task(one_pass(ps, net), context=contextvars.Context())
        await until_nothing_is_held(server)
        async with ps.context():
            assert (await net(X)).requires_grad


async def test_storages_count_once_and_temporary_tensors_do_not_count() -> None:
    async with owner(1 << 40) as (server, ps):
        net = await ps.module("tests.integration.held_models.Squares")
        async with ps.context():
            with pytest.raises(tc.errors.RemoteError, match="after something"):
                await net(X, raises=True)
            await until_nothing_is_held(server)
            y = await net(X)
            # The input, its product with the weight, and the two results that torch saves; the weight does not count.
            assert 3 * X.nbytes <= server.engine.held.nbytes <= 5 * X.nbytes
            del y


async def test_gradients_of_many_parameters_count() -> None:
    async with owner(1 << 40) as (server, ps):
        nets = [await ps.module(torch.nn.Linear, 64, 64) for _ in range(5)]
        async with ps.context() as ctx:
            for _ in range(2):
                for net in nets:
                    await ctx.backward((await net(X)).sum())
            await ctx.get_gradients()
            assert server.engine.held.nbytes == 5 * 64 * 65 * 4


async def test_functions_that_use_no_module_count_with_inputs_and_results() -> None:
    async with owner() as (server, ps):
        x = X.clone().requires_grad_()
        async with ps.context() as ctx:
            results = []
            with pytest.raises(tc.errors.OverloadedError):
                for _ in range(100):
                    results.append(await ps.call("tests.integration.held_models.grown", x))
            assert len(results) == 2
            await ctx.backward(sum(each.sum() for each in results))  # type: ignore[arg-type]
            await until_nothing_is_held(server)


async def test_what_the_graph_of_a_function_keeps_counts_and_not_the_copy_that_was_sent() -> None:
    async with owner() as (server, ps):
        x = X.clone().requires_grad_()
        async with ps.context() as ctx:
            result = await ps.call("tests.integration.held_models.grown", x)
            (context,) = server.engine.contexts.all()
            (record,) = context._records.values()
            (output,) = record._outputs
            assert output is not None
            exp = output.edge.node.next_functions[0][0]
            times = exp.next_functions[0][0]  # type: ignore[union-attr]
            saved = [exp._saved_result, times._saved_self]  # type: ignore[union-attr]
            assert {share.key for share in record.shares} == {each.data_ptr() for each in saved}
            await ctx.backward(result.sum())


@pytest.mark.parametrize("how", ["remote", "rref"])
async def test_results_that_stay_on_the_owner_count(how: str) -> None:
    async with owner() as (server, ps):
        table = await ps.create("tests.integration.held_models.Table")
        kept = []
        with pytest.raises(tc.errors.OverloadedError, match="drop handles"):
            for _ in range(100):
                kept.append(await (table.remote("zeros", COUNT) if how == "remote" else table.left(COUNT)))
        assert len(kept) == 4
        assert server.engine.held.nbytes == MIB
        # Reading them goes on.
        assert (await kept[0].to_here()).shape == (COUNT,)
        assert (await table.zeros(COUNT)).shape == (COUNT,)
        kept.clear()
        await until_nothing_is_held(server)
        await table.left(COUNT)


async def test_a_result_that_was_an_argument_counts_no_longer_than_its_session() -> None:
    async with owner() as (server, ps):
        await ps.module(torch.nn.Linear, 64, 64, name="net")
        gc.collect()
        # On an owner that is idle the collector does not come.
        gc.disable()
        try:
            async with tc.connect(server.address) as other:
                theirs = await other.attach("net")
                async with other.context() as ctx:
                    await ctx.backward((await theirs(theirs(X))).sum())
            await until(lambda: server.engine.held.nbytes == 0)
        finally:
            gc.enable()


@pytest.mark.parametrize("how", ["comes", "fails", "given up"])
async def test_what_a_result_that_comes_later_has_used_counts_no_longer_than_its_session(how: str) -> None:
    async with owner() as (server, _):
        gc.collect()
        gc.disable()
        try:
            async with tc.connect(server.address) as other, other.context():
                small = await other.remote("torch.ones", 1)
                later = other.call("tests.integration.held_models.doubled_later", small, how == "fails")
                task = asyncio.ensure_future(later)
                await until(lambda: server.engine.counters.waiting)
                if how != "given up":
                    held_models.go_on.set()
                with pytest.raises(ValueError, match="later") if how == "fails" else nullcontext():
                    assert how == "given up" or await task == 2
            held_models.go_on.set()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: server.engine.held.nbytes == 0)
        finally:
            held_models.go_on.clear()
            gc.enable()


async def test_what_calls_save_of_values_behind_handles_counts_each_time() -> None:
    async with owner() as (server, ps):
        net = await ps.module(held_models.Weighting)
        small, large = await ps.remote("torch.zeros", 1), await ps.remote("torch.zeros", COUNT)
        kept = server.engine.held.nbytes
        for value, counted in ((small, 4), (large, 4 * COUNT), (small, 4)):
            for _ in range(5):
                async with ps.context():
                    await net(value)
                    assert counted <= server.engine.held.nbytes - kept < counted + 1024
