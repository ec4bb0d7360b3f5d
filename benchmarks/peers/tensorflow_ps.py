"""ParameterServerStrategy of TensorFlow, with a training loop of its own and the look-ups pinned to the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import tensorflow as tf
import torch
from torch import Tensor

from benchmarks import data
from benchmarks.data import Batch
from benchmarks.models import Net
from benchmarks.peers.serving import run
from benchmarks.rows import Row
from benchmarks.trainer import Config
from benchmarks.work import Echoes, Forwards, Work

SERVER = "/job:ps/replica:0/task:0"


class Scheduled:
    """Steps that the coordinator gives to its workers.

    Args:
        schedule: Schedules a step; returns what its loss is fetched from.
        batches: Inputs and targets.
        parameters: Reads the parameters.
        at_once: Whether to schedule all steps of a turn before the first is waited for.
    """

    def __init__(
        self,
        schedule: Callable[[Any, Any], Any],
        batches: Sequence[Batch],
        parameters: Callable[[], dict[str, Tensor]],
        at_once: bool,
    ) -> None:
        self._schedule = schedule
        self._batches = [(x.numpy(), y.numpy()) for x, y in batches]
        self._parameters = parameters
        self._at_once = at_once
        self._losses: list[float] = []
        self._scheduled = 0

    def turn(self, count: int) -> float:
        began = perf_counter()
        waiting = []
        for _ in range(count):
            waiting.append(self._schedule(*self._batches[self._scheduled % len(self._batches)]))
            self._scheduled += 1
            if not self._at_once:
                self._losses.append(float(waiting.pop().fetch()))
        self._losses += [float(loss.fetch()) for loss in waiting]
        return perf_counter() - began

    def result(self) -> dict[str, Tensor]:
        return {"losses": torch.tensor(self._losses), **self._parameters()}


class TensorFlow:
    """The work of the rows through a coordinator, workers and one parameter server.

    Args:
        config: Addresses: the server first, then the workers.
    """

    def __init__(self, config: Config) -> None:
        self._sizes = config.sizes
        server, *self._workers = config.owners
        cluster = tf.train.ClusterSpec({"ps": [server], "worker": self._workers, "chief": ["127.0.0.1:0"]})
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            cluster, task_type="chief", task_id=0, rpc_layer="grpc"
        )
        self._strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)

    @contextmanager
    def work(self, row: Row) -> Iterator[Work]:
        """The work of a row, for a block."""
        match row.kind:
            case "echo":
                yield Echoes(_echo, row.bytes)
            case "emb_forward":
                yield Forwards(self._forward(self._table()), data.bags(self._sizes, zipf=row.zipf))
            case "emb_step" | "emb_step_whole":
                yield self._bags(row)
            case "convnet_step" | "convnet_overlapped":
                yield self._convnet(at_once=row.kind == "convnet_overlapped")
            case kind:
                raise ValueError(f"{kind} is no work of this side")

    def _variable(self, value: Tensor) -> tf.Variable:
        with self._strategy.scope():
            return tf.Variable(value.detach().numpy())

    def _table(self) -> tf.Variable:
        torch.manual_seed(data.MODEL_SEED)
        return self._variable(torch.nn.EmbeddingBag(self._sizes.table_rows, self._sizes.dim, mode="sum").weight)

    def _forward(self, table: tf.Variable) -> Callable[[Tensor], Tensor]:
        @tf.function
        def forward(ids: tf.Tensor) -> tf.Tensor:
            return _sums(table, ids)

        return lambda ids: torch.from_numpy(self._coordinator.schedule(forward, (ids.numpy(),)).fetch())

    def _bags(self, row: Row) -> Work:
        table, lr = self._table(), data.emb_lr(row.zipf)

        @tf.function
        def step(ids: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
            difference = _sums(table, ids) - wanted
            gradient = difference * (2.0 / self._sizes.bags)
            with tf.device(SERVER):
                rows = tf.repeat(gradient * -lr, self._sizes.per_bag, axis=0)
                table.scatter_add(tf.IndexedSlices(rows, tf.reshape(ids, [-1])))
            return tf.reduce_sum(tf.square(difference)) / self._sizes.bags

        trainers = row.shape.trainers
        each = [data.bags(self._sizes, rank, trainers, row.zipf) for rank in range(trainers)]
        forward = self._forward(table)
        return Scheduled(
            lambda ids, wanted: self._coordinator.schedule(step, (ids, wanted)),
            [batch for batches in zip(*each, strict=True) for batch in batches],
            # With several workers the steps of one trainer overlap, so only the losses can be compared.
            lambda: {} if trainers > 1 else {"rows 0": forward(data.probe_ids(each[0]))},
            trainers > 1,
        )

    def _convnet(self, at_once: bool) -> Work:
        torch.manual_seed(data.MODEL_SEED)
        net = Net()
        one, two = (self._variable(conv.weight.permute(2, 3, 1, 0).contiguous()) for conv in (net.conv1, net.conv2))
        # Torch flattens maps first, TensorFlow last.
        wide = net.fc1.weight.view(128, 64, 12, 12).permute(2, 3, 1, 0).reshape(-1, 128)
        full, last = self._variable(wide), self._variable(net.fc2.weight.t().contiguous())
        biases = [self._variable(part.bias) for part in (net.conv1, net.conv2, net.fc1, net.fc2)]
        variables = [one, two, full, last, *biases]

        @tf.function
        def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            # All of it beside the parameters: on a worker, each step would send five megabytes there and back.
            with tf.device(SERVER):
                with tf.GradientTape() as tape:
                    maps = tf.nn.relu(tf.nn.conv2d(tf.transpose(x, [0, 2, 3, 1]), one, 1, "VALID") + biases[0])
                    maps = tf.nn.relu(tf.nn.conv2d(maps, two, 1, "VALID") + biases[1])
                    flat = tf.reshape(tf.nn.dropout(tf.nn.max_pool2d(maps, 2, 2, "VALID"), 0.25), [-1, 9216])
                    hidden = tf.nn.dropout(tf.nn.relu(flat @ full + biases[2]), 0.5)
                    scores = hidden @ last + biases[3]
                    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores)
                    loss = tf.reduce_mean(losses)
                for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                    variable.assign_sub(data.CONVNET_LR * gradient)
            return loss

        # Other random numbers drop other features, so only the losses can be compared.
        return Scheduled(lambda x, y: self._coordinator.schedule(step, (x, y)), data.images(self._sizes), dict, at_once)


def _echo(payload: Tensor) -> Tensor:
    with tf.device(SERVER):
        there = tf.identity(payload.numpy())
    return torch.from_numpy(np.asarray(there))


def _sums(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    # Beside the table, so that sums travel and not rows.
    with tf.device(SERVER):
        return tf.reduce_sum(tf.gather(table, ids), 1)


@contextmanager
def owner(arguments: list[str]) -> Iterator[str]:
    """Starts a server of TensorFlow for a job."""
    (job,) = arguments
    server = tf.distribute.Server({job: ["127.0.0.1:0"]}, job_name=job, task_index=0)
    yield server.target.removeprefix("grpc://")


if __name__ == "__main__":
    run(owner, TensorFlow)
