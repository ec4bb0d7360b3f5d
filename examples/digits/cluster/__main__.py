"""Runs one trainer of the cluster.

Beside owners on this host, each started with ``--import examples.digits.cluster``::

    python -m examples.digits.cluster --directory 127.0.0.1:50051 --owners ps0,ps1
"""

from __future__ import annotations

import asyncio
import signal
import sys

import trainer_client as tc
from examples.digits.cluster.settings import parse
from examples.digits.cluster.trainer import Trainer
from examples.digits.data import load
from examples.digits.idx import IdxError


async def run(trainer: Trainer) -> None:
    """Runs a trainer until it has finished or a signal has stopped it.

    Raises:
        As `Trainer.run`.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, trainer.stop)
    await trainer.run()


def main(arguments: list[str] | None = None) -> int:
    """Runs one trainer and returns its exit code: 1 if an owner failed, 2 if its settings are not valid."""
    settings = parse(arguments)
    try:
        asyncio.run(run(Trainer(settings, load(settings.data))))
    except (tc.PsError, IdxError) as error:
        print(f"trainer: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, IdxError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
