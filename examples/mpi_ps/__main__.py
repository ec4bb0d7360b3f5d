"""Trains in every mode, compares the synchronous one with a single process, and draws what was measured."""

from __future__ import annotations

import asyncio
import sys

import torch
from rich.console import Console
from torch import Tensor

from examples.mpi_ps.model import Net
from examples.mpi_ps.modes import MODES
from examples.mpi_ps.reference import train_here
from examples.mpi_ps.report import draw, table
from examples.mpi_ps.settings import Settings, parse
from examples.mpi_ps.training import Run, train
from examples.plan import Plan, shorter
from ps_service.launch.process import ProcessFailed
from trainer_client import PsError

TOLERANCE = 1e-4
TAKES = "two to four minutes"


def main(arguments: list[str] | None = None) -> int:
    """Runs the example and returns its exit code: 1 if the synchronous training differs from that of one process."""
    settings, console = parse(arguments), Console()
    names = list(settings.modes) or list(MODES)
    if unknown := [name for name in names if name not in MODES]:
        console.print(f"there is no mode {unknown[0]!r}; there are: {', '.join(map(repr, MODES))}", style="red")
        return 2
    torch.set_num_threads(1)
    plan = Plan(TAKES, bool(settings.modes) or shorter(settings, "steps"), settings.out)
    runs: list[Run] = []
    try:
        console.print(f"{settings.trainers} trainers, {settings.steps} gradients each, in {len(names)} modes")
        console.print(str(plan), highlight=False, soft_wrap=True)
        asyncio.run(_collect(settings, names, runs, console))
    except (PsError, ProcessFailed) as error:
        console.print(f"a process has failed: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    console.print(table(runs, settings))
    path = plan.folder / "mpi-ps.png"
    draw(runs, path)
    console.print(f"picture: {path}", soft_wrap=True)
    return _compare(settings, runs, console)


async def _collect(settings: Settings, names: list[str], runs: list[Run], console: Console) -> None:
    # A spinner, which only a terminal shows; a mode takes up to half a minute.
    with console.status(f"1/{len(names)} {names[0]}") as status:
        async for run in train(settings, names):
            runs.append(run)
            console.print(f"{len(runs)}/{len(names)} {run.name}: {run.points[-1].seconds:.1f} s", highlight=False)
            if len(runs) < len(names):
                status.update(f"{len(runs) + 1}/{len(names)} {names[len(runs)]}")


def _compare(settings: Settings, runs: list[Run], console: Console) -> int:
    """Holds the synchronous training to that of one process with the whole batch."""
    found = next((run for run in runs if run.name == "sync"), None)
    if found is None:
        return 0
    largest = difference(found.parameters, train_here(settings, first_parameters(settings)))
    console.print(f"sync differs by {largest:.1e} at most from one process with the whole batch")
    return 0 if largest <= TOLERANCE else 1


def first_parameters(settings: Settings) -> dict[str, Tensor]:
    """What the owner's constructor makes with the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        return dict(Net().state_dict())


def difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """The largest one over all parameters."""
    return max(float((first[name] - second[name]).abs().max()) for name in second)


if __name__ == "__main__":
    sys.exit(main())
