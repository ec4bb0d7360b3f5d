"""Tests how many requests a pass needs, and that fewer requests change no gradient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn, optim

import trainer_client as tc
from ps_service.server import Server
from tests import graph_models
from tests.training import same_gradients, training, twin
from trainer_client.graph import nodes

USERS, ITEMS, WIDTH, BATCH = 30, 20, 4, 8

WARM = 12
"""Passes after which it is known what is short."""


@pytest.fixture(autouse=True)
def all_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of these small models counts as short, however busy the machine is."""
    monkeypatch.setattr("ps_wire.runtime.latency.INLINE_SECONDS", 10.0)
    monkeypatch.setattr(nodes, "TOGETHER_SECONDS", 10.0)


class Recommender:
    """Two embeddings and a head on owners, and the same in this process."""

    def __init__(self, remote: list[tc.RemoteModule], local: list[nn.Module]) -> None:
        self.remote = remote
        self.local = local

    @classmethod
    async def make(cls, ps: tc.Client, *owners: str, sparse: bool = False) -> Recommender:
        makers: list[tuple[str, Callable[..., nn.Module], tuple[int, ...], dict[str, Any]]] = [
            ("torch.nn.Embedding", nn.Embedding, (USERS, WIDTH), {"sparse": sparse}),
            ("torch.nn.Embedding", nn.Embedding, (ITEMS, WIDTH), {"sparse": sparse}),
            ("tests.graph_models.Score", graph_models.Score, (WIDTH, WIDTH, 1), {}),
        ]
        remote, local = [], []
        for number, (name, maker, args, kwargs) in enumerate(makers):
            remote.append(await ps.module(name, *args, owner=owners[number % len(owners)], **kwargs))
            local.append(await twin(remote[-1], maker(*args, **kwargs)))
        return cls(remote, local)

    async def score(self, number: int) -> torch.Tensor:
        """The loss of a batch on the owners."""
        users, items, wanted = batch_of(number)
        first, second = self.remote[0](users), self.remote[1](items)
        return nn.functional.mse_loss(await self.remote[2](await first, await second), wanted)

    async def score_kept(self, number: int) -> torch.Tensor:
        """The same, with the embedded rows kept on the owner."""
        users, items, wanted = batch_of(number)
        first, second = self.remote[0].remote("forward", users), self.remote[1].remote("forward", items)
        return nn.functional.mse_loss(await self.remote[2](await first, await second), wanted)

    async def score_pipelined(self, number: int) -> torch.Tensor:
        """The same in one message."""
        users, items, wanted = batch_of(number)
        return nn.functional.mse_loss(await self.remote[2](self.remote[0](users), self.remote[1](items)), wanted)

    def score_here(self, number: int) -> torch.Tensor:
        """The same in this process."""
        users, items, wanted = batch_of(number)
        return nn.functional.mse_loss(self.local[2](self.local[0](users), self.local[1](items)), wanted)

    def backward_here(self, number: int) -> None:
        """The gradients of a batch in this process."""
        for local in self.local:
            local.zero_grad()
        self.score_here(number).backward()

    async def same_parameters(self) -> None:
        """Holds all parameters to those of this process, bit for bit."""
        for remote, local in self.pairs:
            state = await remote.state_dict()
            assert all(torch.equal(state[name], parameter) for name, parameter in local.state_dict().items())

    def parameters(self) -> list[tc.RRef]:
        return [parameter for remote in self.remote for parameter in remote.parameters()]

    def parameters_here(self) -> list[nn.Parameter]:
        return [parameter for local in self.local for parameter in local.parameters()]

    @property
    def pairs(self) -> list[tuple[tc.RemoteModule, nn.Module]]:
        return list(zip(self.remote, self.local, strict=True))


def batch_of(number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(number)
    users = torch.randint(USERS, (BATCH,), generator=numbers)
    items = torch.randint(ITEMS, (BATCH,), generator=numbers)
    return users, items, torch.rand(BATCH, 1, generator=numbers)


def requests(server: Server) -> Counter[str]:
    """How many requests of each operation an owner has answered, but for its status: a slow step asks for it."""
    counts = server.engine.counters.operations()
    return Counter({name: count.durations.count for name, count in counts.items() if name != "status"})


@pytest.mark.parametrize(
    ("kept", "backwards", "sparse"), [(False, 2, True), (True, 1, False)], ids=["call by call, sparse", "kept, dense"]
)
async def test_calls_of_one_owner_share_backward_requests(kept: bool, backwards: int, sparse: bool) -> None:
    async with training() as ((server,), ps):
        model = await Recommender.make(ps, "ps0", sparse=sparse)
        score = model.score_kept if kept else model.score
        for number in range(WARM + 3):
            async with ps.context() as ctx:
                before = requests(server)
                await ctx.backward(await score(number))
                made = requests(server) - before
                model.backward_here(number)
                await same_gradients(ctx, model.pairs)
            assert number < WARM or made["backward"] == backwards


async def test_calls_of_two_owners_have_a_request_each() -> None:
    async with training("ps0", "ps1") as (servers, ps):
        model = await Recommender.make(ps, "ps0", "ps1")
        for number in range(WARM + 3):
            async with ps.context() as ctx:
                before = [requests(server)["backward"] for server in servers]
                await ctx.backward(await model.score(number))
                made = [requests(server)["backward"] - count for server, count in zip(servers, before, strict=True)]
                model.backward_here(number)
                await same_gradients(ctx, model.pairs)
            # The head and the embedding of the users are on one owner, that of the items is on the other.
            assert number < WARM or made == [2, 1]


@dataclass
class Counted:
    """What a pass with a step needed.

    Attributes:
        calls: The requests that the trainer sent for the forward.
        sent: The requests that it sent for the backward, the step and the end.
        answered: How many requests of each operation the owner answered in the whole pass.
    """

    calls: int
    sent: int
    answered: Counter[str]


async def trained(sparse: bool, score: Callable[[Recommender, int], Awaitable[torch.Tensor]]) -> list[Counted]:
    """Trains on one owner with steps in the backward, as local torch does; counts the passes after the first ones."""
    found = []
    async with training() as ((server,), ps):
        model = await Recommender.make(ps, "ps0", sparse=sparse)
        cls: Any = optim.SGD if sparse else optim.Adagrad
        opt = await ps.optimizer(cls, model.parameters(), lr=0.1)
        local = cls(model.parameters_here(), lr=0.1)
        for number in range(WARM + 3):
            async with ps.context() as ctx:
                before, first = requests(server), sent_to(ps)
                loss = await score(model, number)
                second = sent_to(ps)
                versions = await ctx.backward(loss, step=opt)
                last = sent_to(ps)
                found.append(Counted(second - first, last - second, requests(server) - before))
            assert versions == {"ps0": number + 1}
            model.backward_here(number)
            local.step()
            await model.same_parameters()
            assert not server.engine.contexts.all()
    return found[WARM:]


async def test_a_pipelined_pass_is_four_requests_and_two_waits() -> None:
    for counted in await trained(True, Recommender.score_pipelined):
        made = counted.answered
        assert (made["call"], made["backward"], made["step"], made["end_context"]) == (3, 1, 1, 1)
        # The results that stayed are given back besides.
        assert counted.calls + counted.sent in (4, 5)


@pytest.mark.parametrize(
    ("kept", "backwards", "sparse"), [(False, 2, False), (True, 1, True)], ids=["call by call, dense", "kept, sparse"]
)
async def test_the_last_request_of_a_backward_carries_the_step_and_the_end(
    kept: bool, backwards: int, sparse: bool
) -> None:
    for counted in await trained(sparse, Recommender.score_kept if kept else Recommender.score):
        made = counted.answered
        assert (made["backward"], made["step"], made["end_context"]) == (backwards, 1, 1)
        # The handles of kept results are given back besides.
        assert kept or counted.sent == backwards


async def test_a_pass_of_one_module_needs_two_requests() -> None:
    async with training() as ((server,), ps):
        net = await ps.module("torch.nn.Linear", 3, 2)
        opt = await ps.optimizer(optim.SGD, net.parameters(), lr=0.1)
        for number in range(WARM + 3):
            sent = sent_to(ps)
            async with ps.context() as ctx:
                await ctx.backward((await net(torch.rand(4, 3))).square().sum(), step=opt)
            assert number < WARM or sent_to(ps) - sent == 2
        assert requests(server)["end_context"] == WARM + 3


async def test_two_owners_step_when_both_have_succeeded() -> None:
    async with training("ps0", "ps1") as (servers, ps):
        model = await Recommender.make(ps, "ps0", "ps1")
        opt = await ps.optimizer(optim.Adagrad, model.parameters(), lr=0.1)
        local = optim.Adagrad(model.parameters_here(), lr=0.1)
        for number in range(WARM + 3):
            before = [requests(server) for server in servers]
            async with ps.context() as ctx:
                assert await ctx.backward(await model.score(number), step=opt) == {
                    "ps0": number + 1,
                    "ps1": number + 1,
                }
            made = [requests(server) - count for server, count in zip(servers, before, strict=True)]
            model.backward_here(number)
            local.step()
            await model.same_parameters()
            assert [each["step"] for each in made] == [1, 1]
            assert number < WARM or [each["backward"] for each in made] == [2, 1]


def sent_to(ps: tc.Client) -> int:
    """How many requests the client has sent to ps0."""
    return ps.session("ps0").requests.window.last_number
