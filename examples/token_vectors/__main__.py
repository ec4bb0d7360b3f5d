"""Learns vectors of the identifiers in Python source, and shows which are similar."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import torch
from rich.console import Console

from examples.plan import Plan, shorter
from examples.token_vectors.neighbours import SHOWN, Neighbours
from examples.token_vectors.progress import Bars
from examples.token_vectors.report import draw, write
from examples.token_vectors.settings import Settings, parse
from examples.token_vectors.training import FREQUENT, Trained, train
from ps_service.launch.process import ProcessFailed
from trainer_client import PsError

TAKES = "one to three minutes"


def main(arguments: list[str] | None = None) -> int:
    """Runs the example and returns its exit code."""
    settings, console = parse(arguments), Console()
    compiles = "and one more the first time, when the owners compile,"
    plan = Plan(f"{TAKES}, {compiles}", shorter(settings, "epochs"), settings.out)
    settings = replace(settings, out=plan.folder)
    _say(console, f"{settings.owners} owners, {settings.trainers} trainers; the identifiers of {settings.source}")
    _say(console, str(plan))
    try:
        torch.set_num_threads(1)
        settings.out.mkdir(parents=True, exist_ok=True)
        with Bars(console) as bars:
            trained = asyncio.run(train(settings, bars.show))
    except (PsError, OSError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    except ProcessFailed as error:
        console.print(f"{error}; what it wrote is above", style="red", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    write(trained, settings.out / "token_vectors.json")
    draw(trained, settings.out / "token_vectors.png")
    _summary(trained, settings, console)
    return 0


def _summary(trained: Trained, settings: Settings, console: Console) -> None:
    if trained.neighbours is not None:
        _similar(trained.neighbours, console)
    tokens, contexts = trained.rows[-1] if trained.rows else (0, 0)
    _say(console, f"text      {trained.tokens:,} identifiers, {trained.different:,} different")
    _say(console, f"rows      {tokens:,} of tokens, {contexts:,} of contexts")
    _say(console, f"speed     {trained.pairs_per_second:,.0f} pairs/s for {trained.seconds:.0f} s")
    _say(console, f"figures   {settings.out / 'token_vectors.json'}")
    _say(console, f"picture   {settings.out / 'token_vectors.png'}")


def _similar(neighbours: Neighbours, console: Console) -> None:
    _say(console, f"nearest of the identifiers that occur at least {FREQUENT} times:")
    for token in SHOWN:
        if nearest := neighbours.nearest(token):
            console.print(f"  [bold green]{token:12}[/] {', '.join(nearest)}", highlight=False, soft_wrap=True)
    found, known = neighbours.found()
    _say(console, f"{found} of {known} pairs that belong together have one among the ten nearest of the other")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
