"""Our side: the trainer client, with owners that `ps-service serve` runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainer_client as tc
from benchmarks import data, jobs
from benchmarks.data import RECOMMENDER, RNN
from benchmarks.models import Calls, ChannelsLastNet, Decoder, EmbeddingTable, LossOfBags, Net, NeuMF, Weights
from benchmarks.rows import Row
from benchmarks.sides import our_tables, shared_memory
from benchmarks.trainer import Config, Wire, serve
from benchmarks.work import OVERLAPPED, AwaitedCalls, AwaitedSteps, Bursts, Echoes, Forwards, Steps, Work
from benchmarks.work import Calls as CallsWork

AWAITED = (
    *("empty_call_async", "calls_in_flight", "convnet_overlapped"),
    *("recommender", "recommender_pipelined", "recommender_whole", "recommender_whole_calls"),
    *("replica", "replica_sync", *jobs.KINDS),
)
"""Kinds of work for the asynchronous client; all others use the blocking one."""


class Ours:
    """The work of the rows through `trainer_client`.

    Args:
        config: The addresses of the owners.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._sizes = config.sizes

    @contextmanager
    def work(self, row: Row) -> Iterator[Work]:
        """The work of a row, for a block."""
        # A client for each row, of the kind that the row measures: gRPC wants one event loop per process.
        if row.kind in AWAITED:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                ps = runner.run(self._opened())
                try:
                    yield runner.run(self._awaited(runner, ps, row))
                finally:
                    runner.run(ps.close())
            return
        with self._connect() as ps:
            if row.kind == "empty_call":
                calls = ps.create(Calls)
                yield CallsWork(calls.nothing)
            elif row.kind == "echo":
                calls = ps.create(Calls)
                yield Echoes(calls.echo, row.bytes)
            elif row.kind == "emb_forward":
                table = self._table(ps, self._sizes.table_rows, data.MODEL_SEED)
                yield Forwards(table, data.bags(self._sizes, zipf=row.zipf))
            else:
                make = {
                    "emb_step": lambda ps: self._bags(ps, row.zipf),
                    "table_step": lambda ps: our_tables.one(ps, self._sizes, row),
                    "table_split": lambda ps: our_tables.one(ps, self._sizes, row, owners=ps.owners),
                    "tables": lambda ps: our_tables.several(ps, self._sizes, row),
                    "table_grow": lambda ps: our_tables.Looks(ps, self._sizes, grows=True),
                    "table_seen": lambda ps: our_tables.Looks(ps, self._sizes, grows=False),
                    "emb_step_whole": self._whole_bags,
                    "split_step": self._split,
                    "convnet_step": self._convnet,
                    "rnn_step": self._rnn,
                }[row.kind]
                yield make(ps)

    async def _opened(self) -> tc.Client:
        return await self._connect()

    def _connect(self) -> Any:
        tcp = {"shared_memory": False} if self._config.tcp and shared_memory.known_to_client() else {}
        folder = Path(self._config.certificates)
        files = folder / "ca.pem", folder / "trainer.pem", folder / "trainer.key"
        tls = {"tls": tc.TLS(*files)} if self._config.certificates else {}
        return tc.connect(*self._config.owners, **tcp, **tls)

    async def _awaited(self, runner: asyncio.Runner, ps: tc.Client, row: Row) -> Work:
        if row.kind in ("recommender", "recommender_pipelined"):
            return await self._recommender(runner, ps, row)
        if row.kind in ("recommender_whole", "recommender_whole_calls"):
            return await self._whole_recommender(runner, ps, row)
        if row.kind in jobs.KINDS:
            return await self._job(runner, ps, row)
        if row.kind in ("replica", "replica_sync"):
            return await self._replica(runner, ps, row)
        if row.kind == "convnet_overlapped":
            return await self._overlapped(runner, ps)
        calls = await ps.create(Calls)
        if row.kind == "empty_call_async":
            return AwaitedCalls(runner, calls.nothing)

        async def burst(numbers: range) -> list[int]:
            return await asyncio.gather(*(calls.increment(number) for number in numbers))

        return Bursts(lambda numbers: runner.run(burst(numbers)), row.per_operation)

    def _table(self, ps: Any, rows: int, seed: int, **where: str) -> Any:
        return ps.module(nn.EmbeddingBag, rows, self._sizes.dim, mode="sum", sparse=True, seed=seed, **where)

    def _bags(self, ps: Any, zipf: bool) -> Work:
        config = self._config
        # Several trainers share one table and one optimizer, by name.
        name = "table" if config.trainers > 1 else ""
        table = self._table(ps, self._sizes.table_rows, data.MODEL_SEED, name=name)
        opt = ps.optimizer(torch.optim.SGD, table.parameters(), lr=data.emb_lr(zipf), fused=True)

        def step(ids: Tensor, wanted: Tensor) -> Tensor:
            with ps.context() as ctx:
                loss = data.bag_loss(table(ids), wanted)
                ctx.backward(loss, step=opt)
            return loss

        batches = data.bags(self._sizes, config.rank, config.trainers, zipf)
        return Steps(step, batches, lambda: {f"rows {config.rank}": table(data.probe_ids(batches))})

    def _whole_bags(self, ps: Any) -> Work:
        net = ps.module(LossOfBags, self._sizes.table_rows, self._sizes.dim, seed=data.MODEL_SEED)
        opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=data.EMB_LR, fused=True)

        def step(ids: Tensor, wanted: Tensor) -> Tensor:
            with ps.context() as ctx:
                loss = net(ids, wanted)
                ctx.backward(loss, step=opt)
            return loss

        batches = data.bags(self._sizes)
        return Steps(step, batches, lambda: {"rows 0": net.sums(data.probe_ids(batches))})

    def _split(self, ps: Any) -> Work:
        half = self._sizes.table_rows // 2
        tables = [self._table(ps, half, data.MODEL_SEED + place, owner=owner) for place, owner in enumerate(ps.owners)]
        opt = ps.optimizer(
            torch.optim.SGD, [p for table in tables for p in table.parameters()], lr=data.EMB_LR, fused=True
        )

        def sums(ids: Tensor) -> Tensor:
            # Both calls are in flight before either is awaited.
            pending = [table.unwrapped(*part) for table, part in zip(tables, data.split(ids, half), strict=True)]
            return pending[0].wait() + pending[1].wait()

        def step(ids: Tensor, wanted: Tensor) -> Tensor:
            with ps.context() as ctx:
                loss = data.bag_loss(sums(ids), wanted)
                ctx.backward(loss, step=opt)
            return loss

        batches = data.bags(self._sizes)
        return Steps(step, batches, lambda: {"rows 0": sums(data.probe_ids(batches))})

    def _convnet(self, ps: Any) -> Work:
        net = ps.module(Net, seed=data.MODEL_SEED)
        opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=data.CONVNET_LR)
        ps.create(Calls).seed(data.OWNER_SEED)

        def step(x: Tensor, y: Tensor) -> Tensor:
            with ps.context() as ctx:
                loss = F.nll_loss(net(x), y)
                ctx.backward(loss, step=opt)
            return loss

        return Steps(step, data.images(self._sizes), net.state_dict)

    async def _overlapped(self, runner: asyncio.Runner, ps: tc.Client) -> Work:
        net = await ps.module(ChannelsLastNet, seed=data.MODEL_SEED)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=data.CONVNET_LR)

        async def step(x: Tensor, y: Tensor) -> Tensor:
            async with ps.context() as ctx:
                loss = F.nll_loss(await net(x), y)
                await ctx.backward(loss, step=opt)
            return loss

        # Two tasks: one pass goes forward while the other goes backward.
        return AwaitedSteps(runner, step, data.images(self._sizes), net.state_dict, OVERLAPPED)

    def _rnn(self, ps: Any) -> Work:
        embedding = ps.module(EmbeddingTable, RNN.ntoken, RNN.ninp, RNN.dropout, seed=data.MODEL_SEED)
        decoder = ps.module(Decoder, RNN.ntoken, RNN.nhid, RNN.dropout, seed=data.MODEL_SEED + 1)
        torch.manual_seed(data.TRAINER_SEED)
        lstm, hidden = data.lstm()
        parameters = [*embedding.parameters(), *decoder.parameters(), *lstm.parameters()]
        opt = ps.optimizer(torch.optim.SGD, parameters, lr=data.RNN_LR)
        ps.create(Calls).seed(data.OWNER_SEED)

        def step(words: Tensor, wanted: Tensor) -> Tensor:
            nonlocal hidden
            hidden = data.detached(hidden)
            with ps.context() as ctx:
                output, hidden = lstm(embedding(words), hidden)
                loss = F.cross_entropy(decoder(output), wanted)
                ctx.backward(loss, step=opt)
            return loss

        state: dict[str, Callable[[], dict[str, Tensor]]] = {
            "embedding": embedding.state_dict,
            "decoder": decoder.state_dict,
            "lstm": lstm.state_dict,
        }
        return Steps(
            step,
            data.sentences(self._sizes),
            lambda: {f"{part}.{key}": value for part in state for key, value in state[part]().items()},
        )

    async def _recommender(self, runner: asyncio.Runner, ps: tc.Client, row: Row) -> Work:
        parts = {}
        for place, (name, (cls, *args)) in enumerate(data.recommender_parts(row.sparse).items()):
            # Several trainers share the modules and the optimizer, by name.
            shared = {"name": f"{row.name}.{name}"} if self._config.trainers > 1 else {}
            parts[name] = await ps.module(cls, *args, seed=data.MODEL_SEED + place, **shared)
        users, items, head = parts.values()
        parameters = [parameter for part in parts.values() for parameter in part.parameters()]
        opt = await ps.optimizer(torch.optim.Adagrad, parameters, **data.ADAGRAD)

        async def step(pairs: Tensor, liked: Tensor) -> Tensor:
            async with ps.context() as ctx:
                user, item = await asyncio.gather(users(pairs[0]), items(pairs[1]))
                loss = data.rating_loss(await head(user, item), liked)
                # Call by call: the row with the step in the backward is the pipelined one.
                await ctx.backward(loss)
                await opt.step(ctx)
            return loss

        async def pipelined(pairs: Tensor, liked: Tensor) -> Tensor:
            async with ps.context() as ctx:
                loss = data.rating_loss(await head(users(pairs[0]), items(pairs[1])), liked)
                await ctx.backward(loss, step=opt)
            return loss

        async def state() -> dict[str, Tensor]:
            found = {name: await part.state_dict() for name, part in parts.items()}
            return {f"{name}.{key}": value for name, part in found.items() for key, value in part.items()}

        taken = pipelined if row.kind == "recommender_pipelined" else step
        return AwaitedSteps(runner, taken, data.ratings(self._sizes, self._config.rank), state)

    async def _whole_recommender(self, runner: asyncio.Runner, ps: tc.Client, row: Row) -> Work:
        name = row.name if self._config.trainers > 1 else ""
        net = await ps.module(NeuMF, *astuple(RECOMMENDER), row.sparse, seed=data.MODEL_SEED, name=name)
        opt = await ps.optimizer(torch.optim.Adagrad, net.parameters(), **data.ADAGRAD)

        async def step(pairs: Tensor, liked: Tensor) -> Tensor:
            async with ps.context() as ctx:
                loss = data.rating_loss(await net(pairs), liked)
                await ctx.backward(loss, step=opt)
            return loss

        async def call_by_call(pairs: Tensor, liked: Tensor) -> Tensor:
            async with ps.context() as ctx:
                loss = data.rating_loss(await net(pairs), liked)
                await ctx.backward(loss)
                await opt.step(ctx)
            return loss

        taken = call_by_call if row.kind == "recommender_whole_calls" else step
        return AwaitedSteps(runner, taken, data.ratings(self._sizes, self._config.rank), net.state_dict)

    async def _job(self, runner: asyncio.Runner, ps: tc.Client, row: Row) -> Work:
        job = jobs.job(row.kind, self._sizes)
        net = await ps.module(job.cls, *job.args, seed=data.MODEL_SEED)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=jobs.LR)

        async def step(x: Tensor, wanted: Tensor) -> Tensor:
            async with ps.context() as ctx:
                loss = await net(x, wanted) if row.kind == "linears_whole" else jobs.loss(await net(x), wanted)
                await ctx.backward(loss, step=opt)
            return loss

        return AwaitedSteps(runner, step, job.batches, net.state_dict)

    async def _replica(self, runner: asyncio.Runner, ps: tc.Client, row: Row) -> Work:
        trainers = self._config.trainers
        # Several trainers share one module and one optimizer, by name.
        name, policy = (
            (f"weights {row.bytes}", tc.policies.Sync(trainers)) if row.kind == "replica_sync" else ("", None)
        )
        net = await ps.module(Weights, row.bytes // 4, seed=data.MODEL_SEED, name=name)
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=data.WEIGHTS_LR, policy=policy)
        replica = await net.replica()

        async def step(x: Tensor, _: Tensor) -> Tensor:
            loss: Tensor = replica(x)
            loss.backward()
            await replica.push(opt)
            return loss

        batches = data.vectors(row.bytes // 4, self._sizes, self._config.rank)
        return AwaitedSteps(runner, step, batches, net.state_dict)


def _new_loop() -> asyncio.AbstractEventLoop:
    # The event loop of owners and of the blocking client.
    import uvloop

    return uvloop.new_event_loop()


def main() -> None:
    """Serves the harness."""
    wire = Wire()
    serve(wire, Ours(Config.read(next(iter(wire)))))


if __name__ == "__main__":
    main()
