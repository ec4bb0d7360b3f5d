"""A trainer, which trains a network on an owner with its shard of the digits.

Run some of them with an owner, or one by hand beside an owner::

    ps-service run --trainers 2 --import examples.digits -m examples.digits.trainer
    python -m examples.digits.trainer --address 127.0.0.1:50051 --rank 0 --trainers 1
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import trainer_client as tc
from examples.digits.data import Part, batches, count_batches, load, shard
from examples.digits.idx import IdxError
from examples.digits.messages import Finish, Message, Start, Step, encode
from examples.digits.settings import Settings

# A seed per trainer, far enough apart that neighbouring runs share none.
SEED_STRIDE = 1000


@dataclass(frozen=True)
class Lesson:
    """The task of one trainer."""

    addresses: tuple[str, ...]
    """The owner's ``host:port``; empty for that of `PS_ADDRESS`."""
    rank: int
    part: Part
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    seed: int


async def learn(lesson: Lesson) -> None:
    """Takes all steps of the lesson, and prints each."""
    async with tc.connect(*lesson.addresses) as ps:
        net = await ps.module("examples.digits.Net", name="net")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=lesson.lr, momentum=lesson.momentum)

        async def step(ctx: tc.Context, x: Tensor, y: Tensor) -> float:
            loss = F.nll_loss(await net(x), y)
            await ctx.backward(loss, step=opt)
            return loss.item()

        diary = Diary(lesson)
        for x, y in batches(lesson.part, lesson.batch_size, lesson.epochs, lesson.seed):
            diary.step(await ps.run(step, x, y))
        diary.finish()


def learn_blocking(lesson: Lesson) -> None:
    """Like `learn`, with the blocking client: the same lines without ``await``."""
    with tc.connect(*lesson.addresses) as ps:
        net = ps.module("examples.digits.Net", name="net")
        opt = ps.optimizer(torch.optim.SGD, net.parameters(), lr=lesson.lr, momentum=lesson.momentum)

        def step(ctx: Any, x: Tensor, y: Tensor) -> float:
            loss = F.nll_loss(net(x), y)
            ctx.backward(loss, step=opt)
            return loss.item()

        diary = Diary(lesson)
        for x, y in batches(lesson.part, lesson.batch_size, lesson.epochs, lesson.seed):
            diary.step(ps.run(step, x, y))
        diary.finish()


class Diary:
    """Counts the steps of a lesson and writes them to standard output."""

    def __init__(self, lesson: Lesson) -> None:
        self._rank = lesson.rank
        self._steps = 0
        self._began = time.perf_counter()
        _tell(Start(lesson.rank, count_batches(lesson.part, lesson.batch_size, lesson.epochs)))

    def step(self, loss: float) -> None:
        """Writes one step."""
        self._steps += 1
        _tell(Step(self._rank, self._steps, loss))

    def finish(self) -> None:
        """Writes the end of the lesson."""
        _tell(Finish(self._rank, self._steps, time.perf_counter() - self._began))


def _tell(message: Message) -> None:
    # Flushed, because a pipe is block-buffered.
    print(encode(message), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs one trainer and returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        digits = load(options.data)
        lesson = Lesson(
            addresses=(options.address,) if options.address else (),
            rank=options.rank,
            part=shard(digits.train, options.rank, options.trainers),
            epochs=options.epochs or digits.epochs,
            batch_size=options.batch_size,
            lr=options.lr,
            momentum=options.momentum,
            seed=options.seed * SEED_STRIDE + options.rank,
        )
    except (IdxError, ValueError) as error:
        print(f"trainer {options.rank}: {error}", file=sys.stderr)
        return 2
    try:
        if options.sync:
            learn_blocking(lesson)
        else:
            asyncio.run(learn(lesson))
    except tc.PsError as error:
        print(f"trainer {options.rank}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.digits.trainer", description="Runs one trainer.")
    rank, trainers = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    parser.add_argument("--address", help="the owner, as host:port (default: PS_ADDRESS)")
    parser.add_argument("--rank", type=int, default=rank, help="which trainer this is, from 0 (default: RANK, or 0)")
    parser.add_argument(
        "--trainers", type=int, default=trainers, help="how many share the digits (default: WORLD_SIZE, or 1)"
    )
    parser.add_argument("--epochs", type=int, help="passes over the digits (default: 24, or 2 with --data)")
    parser.add_argument("--data", type=Path, help="directory with the four original MNIST files")
    parser.add_argument("--batch-size", type=int, default=Settings.batch_size)
    parser.add_argument("--lr", type=float, default=Settings.lr)
    parser.add_argument("--momentum", type=float, default=Settings.momentum)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sync", action="store_true", help="use the blocking form of the client")
    return parser


if __name__ == "__main__":
    sys.exit(main())
