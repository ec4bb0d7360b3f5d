"""The side of plain torch, in one process, with or without pauses between forward, backward and step."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import data, jobs
from benchmarks.data import RECOMMENDER, RNN
from benchmarks.models import ChannelsLastNet, Decoder, EmbeddingTable, ManyBags, Net, NeuMF, Weights, ZeroBags
from benchmarks.rows import Row
from benchmarks.trainer import Config, Wire, serve
from benchmarks.work import Forwards, Pause, Steps, Work
from ps_service.memory.malloc import keep_free_memory

Step = Callable[[Tensor, Tensor], Tensor]

PAUSE_SECONDS: Final = 0.0003
"""About the time of a small request and its answer, with the waking up of both processes."""


class Local:
    """The work of the rows in one process.

    Args:
        config: The dimensions of the work.
        pause: Comes before each phase of the work.
    """

    def __init__(self, config: Config, pause: Pause) -> None:
        self._sizes = config.sizes
        self._pause = pause

    @contextmanager
    def work(self, row: Row) -> Iterator[Work]:
        """The work of a row, for a block."""
        match row.kind:
            case "emb_forward":
                table = _table(self._sizes.table_rows, self._sizes.dim, data.MODEL_SEED)
                with torch.no_grad():
                    yield Forwards(table, data.bags(self._sizes, zipf=row.zipf), self._pause)
            case "table_step" | "table_split":
                table = ZeroBags(self._sizes.table_rows, self._sizes.dim, mode="sum", sparse=True)
                batches = data.table_bags(self._sizes, row.zipf)
                step = self._training(lambda ids, wanted: data.bag_loss(table(ids), wanted), _sgd(table, data.TABLE_LR))
                yield Steps(step, batches, lambda: {"rows 0": table(data.probe_ids(batches)).detach()}, self._pause)
            case "tables":
                yield self._many_bags(row)
            case "emb_step" | "emb_step_whole" | "split_step":
                yield self._bags(row)
            case "convnet_step":
                yield self._convnet(Net)
            case "convnet_overlapped":
                yield self._convnet(ChannelsLastNet)
            case "rnn_step":
                yield self._rnn()
            case "recommender" | "recommender_pipelined":
                yield self._recommender(row)
            case "recommender_whole" | "recommender_whole_calls":
                yield self._whole_recommender(row)
            case kind if kind in jobs.KINDS:
                yield self._job(row)
            case "replica":
                yield self._weights(row)
            case "replica_sync":
                yield self._rounds(row)
            case kind:
                raise ValueError(f"{kind} means nothing in one process")

    def _bags(self, row: Row) -> Work:
        if row.kind == "split_step":
            half = self._sizes.table_rows // 2
            halves = [_table(half, self._sizes.dim, data.MODEL_SEED + place).weight for place in (0, 1)]
            table = nn.EmbeddingBag.from_pretrained(torch.cat(halves), freeze=False, mode="sum", sparse=True)
        else:
            table = _table(self._sizes.table_rows, self._sizes.dim, data.MODEL_SEED)
        step = self._training(lambda ids, wanted: data.bag_loss(table(ids), wanted), _sgd(table, data.emb_lr(row.zipf)))
        trainers = row.shape.trainers
        each = [data.bags(self._sizes, rank, trainers, row.zipf) for rank in range(trainers)]
        # Several trainers' steps, by turns: the order does not matter, see `data.bags`.
        return Steps(
            step,
            [batch for batches in zip(*each, strict=True) for batch in batches],
            lambda: {f"rows {rank}": table(data.probe_ids(each[rank])).detach() for rank in range(trainers)},
            self._pause,
        )

    def _many_bags(self, row: Row) -> Work:
        net = ManyBags(row.tables, data.rows_of_each(self._sizes, row.tables), self._sizes.dim)
        batches = data.many_bags(self._sizes, row.tables)
        step = self._training(lambda ids, wanted: data.bag_loss(net(ids), wanted), _sgd(net, data.TABLE_LR))
        return Steps(step, batches, lambda: {"rows 0": net(data.probe_of_many(batches)).detach()}, self._pause)

    def _convnet(self, cls: type[Net]) -> Work:
        net = _seeded(data.MODEL_SEED, cls)
        step = self._training(lambda x, y: F.nll_loss(net(x), y), _sgd(net, data.CONVNET_LR))
        torch.manual_seed(data.OWNER_SEED)
        return Steps(step, data.images(self._sizes), lambda: dict(net.state_dict()), self._pause)

    def _rnn(self) -> Work:
        torch.manual_seed(data.MODEL_SEED)
        embedding = EmbeddingTable(RNN.ntoken, RNN.ninp, RNN.dropout)
        torch.manual_seed(data.MODEL_SEED + 1)
        decoder = Decoder(RNN.ntoken, RNN.nhid, RNN.dropout)
        torch.manual_seed(data.TRAINER_SEED)
        lstm, hidden = data.lstm()
        owner = _Numbers(data.OWNER_SEED)

        def loss(words: Tensor, wanted: Tensor) -> Tensor:
            nonlocal hidden
            hidden = data.detached(hidden)
            with owner:
                embedded = embedding(words)
            output, hidden = lstm(embedded, hidden)
            with owner:
                decoded = decoder(output)
            return F.cross_entropy(decoded, wanted)

        parts = nn.ModuleDict({"embedding": embedding, "decoder": decoder, "lstm": lstm})
        step = self._training(loss, _sgd(parts, data.RNN_LR))
        return Steps(step, data.sentences(self._sizes), lambda: dict(parts.state_dict()), self._pause)

    def _recommender(self, row: Row) -> Work:
        made = zip(data.recommender_parts(row.sparse).items(), itertools.count(data.MODEL_SEED), strict=False)
        parts = nn.ModuleDict({name: _seeded(seed, cls, *args) for (name, (cls, *args)), seed in made})
        users, items, head = parts.values()
        return self._liked(parts, lambda pairs: head(users(pairs[0]), items(pairs[1])), row)

    def _whole_recommender(self, row: Row) -> Work:
        net = _seeded(data.MODEL_SEED, NeuMF, *astuple(RECOMMENDER), row.sparse)
        return self._liked(net, net, row)

    def _job(self, row: Row) -> Work:
        job = jobs.job(row.kind, self._sizes)
        net = _seeded(data.MODEL_SEED, job.cls, *job.args)
        loss = net if row.kind == "linears_whole" else (lambda x, wanted: jobs.loss(net(x), wanted))
        step = self._training(loss, _sgd(net, jobs.LR))
        return Steps(step, job.batches, lambda: dict(net.state_dict()), self._pause)

    def _weights(self, row: Row) -> Work:
        net = _seeded(data.MODEL_SEED, Weights, row.bytes // 4)
        step = self._training(lambda x, _: net(x), _sgd(net, data.WEIGHTS_LR))
        return Steps(step, data.vectors(row.bytes // 4, self._sizes), lambda: dict(net.state_dict()), self._pause)

    def _rounds(self, row: Row) -> Work:
        """The steps of several trainers by turns; with the mean of their gradients after the last of them."""
        net = _seeded(data.MODEL_SEED, Weights, row.bytes // 4)
        optimizer, trainers = _sgd(net, data.WEIGHTS_LR), row.shape.trainers
        turns = itertools.cycle(range(trainers))

        def step(x: Tensor, _: Tensor) -> Tensor:
            turn = next(turns)
            self._pause()
            loss: Tensor = net(x)
            self._pause()
            (loss / trainers).backward()
            if turn == trainers - 1:
                self._pause()
                optimizer.step()
                optimizer.zero_grad()
            return loss

        each = [data.vectors(row.bytes // 4, self._sizes, rank) for rank in range(trainers)]
        batches = [batch for batches in zip(*each, strict=True) for batch in batches]
        return Steps(step, batches, lambda: dict(net.state_dict()), self._pause)

    def _liked(self, net: nn.Module, score: Callable[[Tensor], Tensor], row: Row) -> Work:
        each = [data.ratings(self._sizes, rank) for rank in range(row.shape.trainers)]
        batches = [batch for batches in zip(*each, strict=True) for batch in batches]
        optimizer = torch.optim.Adagrad(net.parameters(), **data.ADAGRAD)
        step = self._training(lambda pairs, liked: data.rating_loss(score(pairs), liked), optimizer)
        return Steps(step, batches, lambda: dict(net.state_dict()), self._pause)

    def _training(self, loss_of: Step, optimizer: torch.optim.Optimizer) -> Step:
        pause = self._pause

        def step(x: Tensor, y: Tensor) -> Tensor:
            pause()
            optimizer.zero_grad()
            loss = loss_of(x, y)
            pause()
            loss.backward()
            pause()
            optimizer.step()
            return loss

        return step


class _Numbers:
    """Draws random numbers like another process, so that dropout here equals dropout on an owner."""

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()

    def __enter__(self) -> None:
        self._own = torch.get_rng_state()
        torch.set_rng_state(self._state)

    def __exit__(self, *_: object) -> None:
        self._state = torch.get_rng_state()
        torch.set_rng_state(self._own)


def _table(rows: int, dim: int, seed: int) -> nn.EmbeddingBag:
    torch.manual_seed(seed)
    return nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)


def _seeded(seed: int, cls: Callable[..., nn.Module], *args: Any) -> nn.Module:
    torch.manual_seed(seed)
    return cls(*args)


def _sgd(module: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=lr)


def main() -> None:
    """Serves the harness; with the argument `pauses`, there is a pause before each phase."""
    # An owner does the same. Otherwise the row would compare allocators.
    keep_free_memory()
    wire = Wire()
    pause = Pause(PAUSE_SECONDS if sys.argv[1:] == ["pauses"] else 0.0)
    serve(wire, Local(Config.read(next(iter(wire))), pause))


if __name__ == "__main__":
    main()
