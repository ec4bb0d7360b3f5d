"""The side of torch.distributed.rpc, written like its tutorials. Owners and trainers are one group."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.optim import DistributedOptimizer

from benchmarks import data, jobs
from benchmarks.data import RECOMMENDER, RNN
from benchmarks.models import Decoder, EmbeddingTable, ManyBags, Net, NeuMF, Ratings, Weights, ZeroBags
from benchmarks.rows import Row
from benchmarks.sides import torch_owner as owner
from benchmarks.trainer import Config, Wire, serve
from benchmarks.work import LOST, Bursts, Calls, Echoes, Forwards, Steps, Work

Step = Callable[[Tensor, Tensor], Tensor]


class Repeated:
    """Repeats a pass whose backward is refused because another trainer's step has changed a parameter meanwhile.

    Args:
        step: One step.

    Attributes:
        lost: Number of refused passes.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self.lost = 0

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        while True:
            try:
                return self._step(x, y)
            except RuntimeError as error:
                if "modified by an inplace operation" not in str(error):
                    raise
                self.lost += 1


class TorchRpc:
    """The work of the rows through torch.distributed.rpc.

    Args:
        config: The names of the owners.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._sizes = config.sizes
        self._owner = config.owners[0]

    @contextmanager
    def work(self, row: Row) -> Iterator[Work]:
        """The work of a row, for a block."""
        to = self._owner
        match row.kind:
            case "empty_call":
                yield Calls(lambda: rpc.rpc_sync(to, owner.nothing))
            case "empty_call_async":
                yield Calls(lambda: rpc.rpc_async(to, owner.nothing).wait())
            case "echo":
                yield Echoes(lambda payload: rpc.rpc_sync(to, owner.echo, args=(payload,)), row.bytes)
            case "calls_in_flight":
                yield Bursts(self._burst, row.per_operation)
            case "emb_forward":
                table = self._table(to, self._sizes.table_rows, data.MODEL_SEED)
                yield Forwards(lambda ids: _sync(nn.EmbeddingBag.forward, table, ids), data.bags(self._sizes))
            case "emb_step":
                yield self._bags()
            case "table_step":
                yield self._table_bags(row)
            case "table_split":
                yield self._split_zeros()
            case "tables":
                yield self._many_bags(row)
            case "split_step":
                yield self._split()
            case "convnet_step":
                yield self._convnet()
            case "rnn_step":
                yield self._rnn()
            case "recommender" | "recommender_pipelined":
                yield self._recommender(row)
            case "recommender_whole" | "recommender_whole_calls":
                yield self._whole_recommender(row)
            case kind if kind in jobs.KINDS:
                yield self._job(row)
            case "replica":
                yield self._replica(row)

    def _burst(self, numbers: range) -> list[int]:
        futures = [rpc.rpc_async(self._owner, owner.increment, args=(number,)) for number in numbers]
        return torch.futures.wait_all(futures)

    def _table(self, to: str, rows: int, seed: int) -> rpc.RRef:
        return self._make(to, "table", seed, nn.EmbeddingBag, rows, self._sizes.dim, mode="sum", sparse=True)

    def _make(self, to: str, name: str, seed: int, *args: Any, **kwargs: Any) -> rpc.RRef:
        if self._config.trainers > 1:
            return rpc.remote(to, owner.make_shared, args=(name, seed, *args), kwargs=kwargs)
        return rpc.remote(to, owner.make, args=(seed, *args), kwargs=kwargs)

    def _bags(self) -> Work:
        config = self._config
        table = self._table(self._owner, self._sizes.table_rows, data.MODEL_SEED)
        step = _training(
            lambda ids, wanted: data.bag_loss(_sync(nn.EmbeddingBag.forward, table, ids), wanted),
            _sgd(_parameters(table), data.EMB_LR),
        )
        batches = data.bags(self._sizes, config.rank, config.trainers)
        probe = data.probe_ids(batches)
        return Steps(step, batches, lambda: {f"rows {config.rank}": _sync(nn.EmbeddingBag.forward, table, probe)})

    def _table_bags(self, row: Row) -> Work:
        sizes = self._sizes
        table = self._make(self._owner, "zeros", 0, ZeroBags, sizes.table_rows, sizes.dim, mode="sum", sparse=True)
        step = _training(
            lambda ids, wanted: data.bag_loss(_sync(nn.EmbeddingBag.forward, table, ids), wanted),
            _sgd(_parameters(table), data.TABLE_LR),
        )
        batches = data.table_bags(sizes, row.zipf)
        probe = data.probe_ids(batches)
        return Steps(step, batches, lambda: {"rows 0": _sync(nn.EmbeddingBag.forward, table, probe)})

    def _split(self) -> Work:
        half = self._sizes.table_rows // 2
        tables = [self._table(to, half, data.MODEL_SEED + place) for place, to in enumerate(self._config.owners)]
        return self._over_owners(tables, half, data.EMB_LR)

    def _split_zeros(self) -> Work:
        half, dim = self._sizes.table_rows // 2, self._sizes.dim
        tables = [self._make(to, "half", 0, ZeroBags, half, dim, mode="sum", sparse=True) for to in self._config.owners]
        return self._over_owners(tables, half, data.TABLE_LR)

    def _many_bags(self, row: Row) -> Work:
        sizes = self._sizes
        rows = data.rows_of_each(sizes, row.tables)
        net = self._make(self._owner, row.name, 0, ManyBags, row.tables, rows, sizes.dim)
        step = _training(
            lambda ids, wanted: data.bag_loss(_sync(ManyBags.forward, net, ids), wanted),
            _sgd(_parameters(net), data.TABLE_LR),
        )
        batches = data.many_bags(sizes, row.tables)
        probe = data.probe_of_many(batches)
        return Steps(step, batches, lambda: {"rows 0": _sync(ManyBags.forward, net, probe)})

    def _over_owners(self, tables: list[rpc.RRef], half: int, lr: float) -> Work:
        """A step of tables with half of the rows each."""

        def sums(ids: Tensor) -> Tensor:
            # Both calls are in flight before either is awaited.
            futures = [
                _async(nn.EmbeddingBag.forward, table, *part)
                for table, part in zip(tables, data.split(ids, half), strict=True)
            ]
            return futures[0].wait() + futures[1].wait()

        step = _training(lambda ids, wanted: data.bag_loss(sums(ids), wanted), _sgd(_parameters(*tables), lr))
        batches = data.bags(self._sizes)
        return Steps(step, batches, lambda: {"rows 0": sums(data.probe_ids(batches))})

    def _convnet(self) -> Work:
        net = rpc.remote(self._owner, owner.make, args=(data.MODEL_SEED, Net))
        parameters = _parameters(net)
        rpc.rpc_sync(self._owner, owner.seed, args=(data.OWNER_SEED,))
        step = _training(lambda x, y: F.nll_loss(_sync(Net.forward, net, x), y), _sgd(parameters, data.CONVNET_LR))
        return Steps(step, data.images(self._sizes), lambda: _state(net))

    def _rnn(self) -> Work:
        embedding = rpc.remote(
            self._owner, owner.make, args=(data.MODEL_SEED, EmbeddingTable, RNN.ntoken, RNN.ninp, RNN.dropout)
        )
        decoder = rpc.remote(
            self._owner, owner.make, args=(data.MODEL_SEED + 1, Decoder, RNN.ntoken, RNN.nhid, RNN.dropout)
        )
        torch.manual_seed(data.TRAINER_SEED)
        lstm, hidden = data.lstm()
        parameters = [*_parameters(embedding, decoder), *map(rpc.RRef, lstm.parameters())]
        rpc.rpc_sync(self._owner, owner.seed, args=(data.OWNER_SEED,))

        def loss(words: Tensor, wanted: Tensor) -> Tensor:
            nonlocal hidden
            hidden = data.detached(hidden)
            output, hidden = lstm(_sync(EmbeddingTable.forward, embedding, words), hidden)
            return F.cross_entropy(_sync(Decoder.forward, decoder, output), wanted)

        def state() -> dict[str, Tensor]:
            parts = {"embedding": _state(embedding), "decoder": _state(decoder), "lstm": lstm.state_dict()}
            return {f"{part}.{key}": value for part, found in parts.items() for key, value in found.items()}

        return Steps(_training(loss, _sgd(parameters, data.RNN_LR)), data.sentences(self._sizes), state)

    def _recommender(self, row: Row) -> Work:
        parts = {
            name: self._make(self._owner, f"{row.name}.{name}", data.MODEL_SEED + place, *made)
            for place, (name, made) in enumerate(data.recommender_parts(row.sparse).items())
        }
        users, items, head = parts.values()

        def loss(pairs: Tensor, liked: Tensor) -> Tensor:
            # Both look-ups are in flight before either is awaited.
            found = [_async(nn.Embedding.forward, users, pairs[0]), _async(nn.Embedding.forward, items, pairs[1])]
            return data.rating_loss(_sync(Ratings.forward, head, *torch.futures.wait_all(found)), liked)

        optimizer = DistributedOptimizer(torch.optim.Adagrad, _parameters(*parts.values()), **data.ADAGRAD)
        step = Repeated(_training(loss, optimizer))

        def state() -> dict[str, Tensor]:
            found = {f"{name}.{key}": value for name, part in parts.items() for key, value in _state(part).items()}
            return found | self._lost(step)

        return Steps(step, data.ratings(self._sizes, self._config.rank), state)

    def _whole_recommender(self, row: Row) -> Work:
        net = self._make(self._owner, row.name, data.MODEL_SEED, NeuMF, *astuple(RECOMMENDER), row.sparse)
        optimizer = DistributedOptimizer(torch.optim.Adagrad, _parameters(net), **data.ADAGRAD)
        step = Repeated(
            _training(lambda pairs, liked: data.rating_loss(_sync(NeuMF.forward, net, pairs), liked), optimizer)
        )
        batches = data.ratings(self._sizes, self._config.rank)
        return Steps(step, batches, lambda: _state(net) | self._lost(step))

    def _lost(self, step: Repeated) -> dict[str, Tensor]:
        return {LOST: torch.tensor(step.lost)} if self._config.trainers > 1 else {}

    def _job(self, row: Row) -> Work:
        job = jobs.job(row.kind, self._sizes)
        net = rpc.remote(self._owner, owner.make, args=(data.MODEL_SEED, job.cls, *job.args))
        forward = job.cls.forward
        optimizer = _sgd(_parameters(net), jobs.LR)
        step = _training(lambda x, wanted: jobs.loss(_sync(forward, net, x), wanted), optimizer)
        return Steps(step, job.batches, lambda: _state(net))

    def _replica(self, row: Row) -> Work:
        net = Weights(row.bytes // 4)
        there = rpc.remote(self._owner, owner.Trained, args=(data.MODEL_SEED, data.WEIGHTS_LR, Weights, row.bytes // 4))
        parameters = list(net.parameters())

        def take(values: list[Tensor]) -> None:
            for parameter, value in zip(parameters, values, strict=True):
                parameter.data = value

        take(_sync(owner.Trained.pull, there))

        def step(x: Tensor, _: Tensor) -> Tensor:
            loss = net(x)
            loss.backward()
            # One call for both, as in torch's tutorial on batch RPC processing.
            take(_sync(owner.Trained.push_and_pull, there, [parameter.grad for parameter in parameters]))
            for parameter in parameters:
                parameter.grad = None
            return loss

        return Steps(step, data.vectors(row.bytes // 4, self._sizes), lambda: _sync(owner.Trained.state_dict, there))


def _sync(method: Callable[..., Any], rref: rpc.RRef, *args: Any) -> Any:
    return rpc.rpc_sync(rref.owner(), owner.call_method, args=(method, rref, *args))


def _async(method: Callable[..., Any], rref: rpc.RRef, *args: Any) -> torch.futures.Future[Any]:
    return rpc.rpc_async(rref.owner(), owner.call_method, args=(method, rref, *args))


def _parameters(*modules: rpc.RRef) -> list[rpc.RRef]:
    return [
        parameter
        for module in modules
        for parameter in rpc.rpc_sync(module.owner(), owner.parameter_rrefs, args=(module,))
    ]


def _state(module: rpc.RRef) -> dict[str, Tensor]:
    return rpc.rpc_sync(module.owner(), owner.state_dict, args=(module,))


def _sgd(parameters: list[rpc.RRef], lr: float) -> DistributedOptimizer:
    return DistributedOptimizer(torch.optim.SGD, parameters, lr=lr)


def _training(loss_of: Callable[[Tensor, Tensor], Tensor], optimizer: DistributedOptimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        with dist_autograd.context() as context:
            loss = loss_of(x, y)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        return loss

    return step


def _join(name: str, rank: int, world_size: int, store: str, tcp: bool) -> None:
    held = {"_transports": ["uv"], "_channels": ["basic"]} if tcp else {}
    # A file for the rendezvous: another process could take a port before torch listens on it.
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}", **held)
    rpc.init_rpc(name, rank=rank, world_size=world_size, rpc_backend_options=options)


def main() -> None:
    """Serves the harness as a trainer, or as an owner until standard input closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["owner", "trainer"])
    role = parser.parse_args().role
    wire = Wire()
    config = Config.read(next(iter(wire)))
    owners = len(config.owners)
    name = config.owners[config.rank] if role == "owner" else f"trainer{config.rank}"
    rank = config.rank + (0 if role == "owner" else owners)
    _join(name, rank, owners + config.trainers, config.store, config.tcp)
    if role == "owner":
        wire.put(ready=True)
        sys.stdin.read()
    else:
        serve(wire, TorchRpc(config))
    # Waits until every other process of the group has called it, too.
    rpc.shutdown()


if __name__ == "__main__":
    main()
