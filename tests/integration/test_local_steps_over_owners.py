"""Tests of local steps with replicas on several owners, held to the algorithms written out in plain torch."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.rpc.servicer import Servicer
from ps_service.server import Server
from ps_wire.compression.choice import Choice
from tests.integration import support
from tests.integration.breaking import same_wherever_it_breaks
from tests.integration.spanning import held, hosted, waiting
from tests.integration.support import AFFINE, bits
from tests.integration.test_local_steps import Inner, Reference, adamw, close, data, sgd
from tests.training import hosted_value, owners
from tests.waiting import until
from trainer_client.transport.faulty import Fault, FaultyConnector, Plan
from trainer_client.transport.in_process import MemoryConnector

Method = tc.LocalSGD | tc.DiLoCo


class Trainer(NamedTuple):
    """A trainer with a layer on each owner, and local steps of all of them."""

    ps: tc.Client
    nets: list[tc.RemoteModule]
    model: tc.Replicas
    local: tc.LocalSteps

    async def train(self, batches: Sequence[torch.Tensor], **more: Any) -> list[tc.Stepped | None]:
        found = []
        for x in batches:
            self.model(x).square().mean().backward()
            found.append(await self.local.step(**more))
        return found


async def begun(
    ps: tc.Client, places: Sequence[str], method: Method, inner: Inner = sgd, compress: Any = None, **options: Any
) -> Trainer:
    nets = [
        await ps.module("torch.nn.Linear", 8, 8, name=f"net-{place}", seed=place, owner=name)
        for place, name in enumerate(places)
    ]
    model = ps.replicas(nn.Sequential(*[await each.replica(compress=compress) for each in nets]))
    return Trainer(ps, nets, model, await ps.local_steps(model, inner(model.parameters()), method, **options))


@asynccontextmanager
async def trainers(
    count: int, method: Method, places: Sequence[str] = ("ps0", "ps1"), inner: Inner = sgd, **more: Any
) -> AsyncIterator[tuple[list[Server], list[Trainer]]]:
    more = {"policy": tc.policies.Sync(count), **more}
    async with owners(*dict.fromkeys(places)) as servers, AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            ps = await stack.enter_async_context(tc.connect(*(each.address for each in servers)))
            made.append(await begun(ps, places, method, inner, **more))
        yield servers, made


def plain(trainer: Trainer) -> nn.Sequential:
    """The local model without replicas."""
    return nn.Sequential(*(copy.deepcopy(each.module) for each in trainer.model.module))  # type: ignore[arg-type,union-attr]


def same_on_owners(servers: list[Server], trainer: Trainer) -> None:
    """Holds the parameters of a trainer to those on the owners, bit for bit."""
    by_name = {server.engine.name: server for server in servers}
    theirs = [each for net in trainer.nets for each in hosted_value(by_name[net.owner], net).parameters()]
    assert all(torch.equal(*pair) for pair in zip(trainer.model.parameters(), theirs, strict=True))


async def train_all(group: Sequence[Trainer], batches: Sequence[Sequence[torch.Tensor]]) -> list[Any]:
    return await asyncio.gather(*(each.train(x) for each, x in zip(group, batches, strict=True)))


@pytest.mark.parametrize(
    ("method", "inner", "places", "compress"),
    [
        (tc.LocalSGD(3), sgd, ("ps0", "ps1"), None),
        (tc.LocalSGD(3), adamw, ("ps0", "ps1", "ps2"), None),
        (tc.DiLoCo(2), adamw, ("ps0", "ps1"), None),
        (tc.DiLoCo(2), sgd, ("ps2", "ps0", "ps1", "ps0"), None),
        (tc.DiLoCo(2), sgd, ("ps0", "ps1", "ps2"), Choice(tc.codecs.TopK(0.2), min_numel=0)),
    ],
    ids=["local-sgd", "local-sgd-of-3", "diloco", "diloco-shared", "diloco-top-k"],
)
async def test_rounds_equal_the_algorithm_written_out(
    method: Method, inner: Inner, places: tuple[str, ...], compress: Choice | None
) -> None:
    async with trainers(3, method, places, inner, compress=compress) as (servers, group):
        reference = Reference(plain(group[0]), method, 3, inner, compress)
        for turn in range(2):
            batches = data(3, method.every, turn)
            found = await train_all(group, batches)
            reference.round(batches)
            assert [each[:-1] for each in found] == [[None] * (method.every - 1)] * 3
            assert [(each[-1].counted, each[-1].staleness) for each in found] == [(3, 0)] * 3
            assert all(each[-1] == {server.engine.name: turn + 1 for server in servers} for each in found)
            close(group[0].model, reference.net)
            for each in group:
                same_on_owners(servers, each)
                assert each.local.steps == 0


@pytest.mark.parametrize("policy", [None, tc.policies.Async(), tc.policies.BoundedStaleness(2)], ids=str)
async def test_every_difference_counts_once_on_all_owners_without_rounds_of_all(
    policy: tc.policies.Policy | None,
) -> None:
    async with trainers(2, tc.LocalSGD(2), policy=policy) as (servers, group):
        for turn in range(3):
            await train_all(group, data(2, 2, turn))
        assert [hosted(server).version for server in servers] == [6, 6]
        for each in group:
            await each.model.pull()
            same_on_owners(servers, each)


async def test_a_trainer_that_dies_between_rounds_and_one_that_joins_split_no_round() -> None:
    method = tc.DiLoCo(2)
    async with trainers(3, method, policy=tc.policies.Sync()) as (servers, group):
        reference = Reference(plain(group[0]), method, 2, sgd)
        batches = data(3, 2, 0)
        waits = asyncio.create_task(train_all(group[:2], batches[:2]))
        await until(lambda: waiting(servers[0]) == 2)
        # The third has taken one local step, and its difference is on its way to nobody.
        await group[2].train(batches[2][:1])
        await group[2].ps.close()
        assert [each[-1].counted for each in await waits] == [2, 2]
        reference.round(batches[:2])
        close(group[0].model, reference.net)
        async with tc.connect(*(each.address for each in servers)) as ps:
            late = await begun(ps, ("ps0", "ps1"), method, policy=None)
            reference.locals.append(copy.deepcopy(reference.net))
            reference.inners.append(sgd(reference.locals[2].parameters()))
            reference.feedback.append(None)
            for turn in (1, 2):
                batches = data(3, 2, turn)
                found = await train_all([*group[:2], late], batches)
                reference.round(batches)
                assert [each[-1].counted for each in found] == [3, 3, 3]
                for each in (*group[:2], late):
                    close(each.model, reference.net)
                    same_on_owners(servers, each)
        assert [hosted(server).version for server in servers] == [3, 3] and held(servers[1]) == 0


async def test_a_trainer_that_dies_while_its_difference_waits_is_in_no_owners_round() -> None:
    method = tc.LocalSGD(1)
    async with trainers(3, method, policy=tc.policies.Sync()) as (servers, group):
        reference = Reference(plain(group[0]), method, 2, sgd)
        batches = data(3, 1, 0)
        dying = asyncio.create_task(group[2].train(batches[2]))
        await until(lambda: waiting(servers[0]) == 1 and held(servers[1]) == 1)
        await group[2].ps.close()
        with pytest.raises(tc.PsError):
            await dying
        found = await train_all(group[:2], batches[:2])
        reference.round(batches[:2])
        assert [each[-1].counted for each in found] == [2, 2]
        close(group[0].model, reference.net)
        same_on_owners(servers, group[1])
        assert held(servers[1]) == 0


async def test_a_cancelled_push_keeps_the_difference_for_the_next_one() -> None:
    method = tc.DiLoCo(2)
    async with trainers(2, method) as (servers, group):
        reference = Reference(plain(group[0]), method, 2, sgd)
        batches = data(2, 2, 0)
        waits = asyncio.create_task(group[0].train(batches[0]))
        await until(lambda: waiting(servers[0]) == 1)
        waits.cancel()
        await until(lambda: waiting(servers[0]) == 0 and held(servers[1]) == 0)
        assert group[0].local.steps == 2
        await asyncio.gather(group[0].local.push(), group[1].train(batches[1]))
        reference.round(batches)
        for each in group:
            close(each.model, reference.net)


async def test_a_push_that_fails_after_it_may_have_counted_needs_a_pull() -> None:
    async with trainers(1, tc.LocalSGD(1)) as (servers, (one,)):
        (batches,) = data(1, 2, 0)
        part = one.local.optimizer._rounds._followers["ps1"]
        settle, part.settle = part.settle, failing  # type: ignore[method-assign]
        with pytest.raises(tc.errors.RemoteError, match="broken"):
            await one.train(batches[:1])
        part.settle = settle  # type: ignore[method-assign]
        assert [hosted(server).version for server in servers] == [1, 0]
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"call pull\(\)"):
            await one.local.push()
        await one.model.pull()
        assert (await one.train(batches[1:]))[0] == {"ps0": 2, "ps1": 2}
        same_on_owners(servers, one)


async def test_a_push_that_was_cancelled_and_has_counted_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with trainers(1, tc.LocalSGD(1)) as (servers, (one,)):
        part = one.local.optimizer._rounds._leader
        before, sent = part.offer, []

        def offer(*args: Any) -> Any:
            sent.append(before(*args))  # the answer is lost
            return tc.Pending(asyncio.get_running_loop())

        (batches,) = data(1, 2, 0)
        with monkeypatch.context() as patch:
            patch.setattr(part, "offer", offer)
            lost = asyncio.create_task(one.train(batches[:1]))
            await until(lambda: bool(sent))
            await sent[0]
            lost.cancel()
            await asyncio.wait([lost])
            await until(lambda: [hosted(server).version for server in servers] == [1, 1])
        with pytest.raises(tc.errors.InvalidArgumentError, match=r"has counted.* call pull\(\)"):
            await one.local.push()
        assert [hosted(server).version for server in servers] == [1, 1]
        await one.model.pull()
        assert (await one.train(batches[1:]))[0] == {"ps0": 2, "ps1": 2}
        same_on_owners(servers, one)


def failing(*args: Any) -> Any:
    """Brings no decision."""
    raise tc.errors.RemoteError("broken", "RuntimeError")


async def test_values_of_local_steps_are_reduced_here_and_over_trainers() -> None:
    reduce: dict[str, Any] = {"samples": "sum", "last": "keep", "hits": "sum"}
    async with trainers(2, tc.LocalSGD(2)) as (_, group):

        async def train(rank: int, each: Trainer, turn: int) -> tc.Stepped | None:
            found = None
            for step in range(2):
                each.model(torch.ones(1, 8)).sum().backward()
                values = {"loss": torch.tensor(rank + step * 1.0), "samples": 4, "last": [turn, step]}
                found = await each.local.step(values={**values, "hits": torch.tensor([1, rank])}, reduce=reduce)
            return found

        for turn in range(2):
            for stepped in await asyncio.gather(*(train(rank, each, turn) for rank, each in enumerate(group))):
                assert stepped is not None
                hits = stepped.reported.pop("hits")
                kept = {each.ps.trainer_name: [turn, 1] for each in group}
                assert stepped.reported == {"loss": 1.0, "samples": 16, "last": kept}
                assert hits.tolist() == [4, 2]
        totals = await group[0].local.optimizer.values()
        assert totals["samples"] == 32 and totals.counts["loss"] == 4


async def test_values_that_do_not_fit_those_of_earlier_local_steps_are_refused_before_the_step() -> None:
    async with trainers(1, tc.LocalSGD(3)) as (_, (one,)):
        await one.train([torch.ones(1, 8)], values={"loss": 1.0})
        before = copy.deepcopy(plain(one))
        for values, reduce in (({"loss": torch.ones(2)}, "mean"), ({"loss": 1.0}, "sum"), ({"loss": "text"}, "mean")):
            with pytest.raises(tc.errors.InvalidArgumentError, match="loss"):
                await one.train([torch.ones(1, 8)], values=values, reduce=reduce)
        assert one.local.steps == 1
        close(one.model, before)
        stepped = await one.local.push(values={"loss": 2.0})
        assert stepped is not None and stepped.reported == {"loss": 1.5}
        assert (await one.local.push()).reported == {}  # type: ignore[union-attr]


async def test_a_dropped_difference_is_lost_with_its_values_and_leaves_the_owners_parameters() -> None:
    async with trainers(2, tc.LocalSGD(1), policy=tc.policies.Quorum(1, of=2)) as (servers, (fast, slow)):
        await fast.train(data(1, 1, 0)[0])
        (dropped,) = await slow.train(data(1, 1, 1)[0], values={"loss": 1.0})
        assert dropped is not None and dropped.dropped == "late" and slow.local.steps == 0
        same_on_owners(servers, slow)
        assert "loss" not in await fast.local.optimizer.values()
        assert (await slow.local.push()).reported == {}  # type: ignore[union-attr]


async def test_a_difference_that_is_not_finite_on_one_owner_changes_nothing_on_any() -> None:
    async with trainers(1, tc.LocalSGD(1), non_finite="refuse", policy=tc.policies.Async()) as (servers, (one,)):
        before = plain(one)
        with torch.no_grad():
            list(one.model.parameters())[2][0, 0] = float("nan")
        with pytest.raises(tc.errors.NonFiniteGradientError):
            await one.local.push()
        assert [hosted(server).version for server in servers] == [0, 0]
        await one.model.pull()
        close(one.model, before)


async def test_what_makes_no_sense_is_refused() -> None:
    async with trainers(1, tc.LocalSGD(2)) as (_, (one,)):
        one.model(torch.ones(1, 8)).sum().backward()
        with pytest.raises(tc.errors.InvalidArgumentError, match="local steps"):
            one.model.push(one.local.optimizer)
        with pytest.raises(tc.errors.InvalidArgumentError, match="no parameter of the replica"):
            one.model.local_steps(sgd(nn.Linear(1, 1).parameters()), one.local.optimizer, every=2)
        fresh = [await each.replica() for each in one.nets]
        overlapping = one.ps.replicas(nn.Sequential(*fresh), overlap=1)
        with pytest.raises(tc.errors.InvalidArgumentError, match="overlap"):
            overlapping.local_steps(sgd(overlapping.parameters()), one.local.optimizer, every=2)
        twice = one.ps.replicas(nn.Sequential(fresh[0], await one.nets[0].replica()))
        with pytest.raises(tc.errors.InvalidArgumentError, match="same module"):
            twice.local_steps(sgd(twice.parameters()), one.local.optimizer, every=2)
        part = await one.ps.optimizer(optim.SGD, one.nets[0].parameters(), lr=1.0, name="part")
        model = one.ps.replicas(nn.Sequential(*fresh))
        with pytest.raises(tc.errors.InvalidArgumentError, match="does not step all"):
            model.local_steps(sgd(model.parameters()), part, every=2)
        model.local_steps(sgd(model.parameters()), one.local.optimizer, every=2)  # nothing was changed before


async def job(plan: Plan) -> list[Any]:
    """Two trainers of two rounds with a layer on each of two owners; the state in the end.

    The plan breaks a stream between the first trainer and an owner. Sums are exact in every order.
    """
    async with AsyncExitStack() as stack:
        connectors = []
        for name in ("ps0", "ps1"):
            owner = support.engine(name)
            stack.push_async_callback(asyncio.to_thread, owner.close)
            servicer = Servicer(owner)
            stack.callback(servicer.close)
            connectors.append(servicer)
        group: list[Trainer] = []
        for number in range(2):
            lines: list[Any] = [MemoryConnector(servicer.serve) for servicer in connectors]
            if number == 0:
                lines = [FaultyConnector(line, plan) for line in lines]
            ps = await stack.enter_async_context(tc.connect(*lines))
            nets = [await ps.module(AFFINE, 3, 3, name=f"net-{name}", seed=0, owner=name) for name in ("ps0", "ps1")]
            model = ps.replicas(nn.Sequential(*[await each.replica() for each in nets]))
            local = await ps.local_steps(model, sgd(model.parameters()), tc.DiLoCo(2), policy=tc.policies.Sync(2))
            group.append(Trainer(ps, nets, model, local))
        for turn in range(2):
            batches = [[torch.full((2, 3), turn + 1.0)] * 2] * 2
            await train_all(group, batches)
        states = [bits(each.model.state_dict()) for each in group]
        assert states[0] == states[1]
        return bits([states[0], [await net.state_dict() for net in nets], await local.optimizer.state_dict()])


async def test_a_difference_counts_once_on_every_owner_wherever_the_stream_breaks() -> None:
    await same_wherever_it_breaks(job, Fault.CUT_AFTER, kinds=["add_gradients", "step", "hold", "settle"])
