"""Trains on ratings with owners and trainers, trains the same in one process, and compares HR@10 of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

import torch
from rich.console import Console

from examples.plan import Plan, shorter
from examples.recommender.ratings import planted
from examples.recommender.ratings.movielens import RatingsError
from examples.recommender.ratings.ranking import Ranked, rank
from examples.recommender.ratings.reference import Reference
from examples.recommender.ratings.report import Report, draw
from examples.recommender.ratings.settings import Settings, parse, source_of
from examples.recommender.ratings.split import LeaveOneOut
from examples.recommender.ratings.trainer import Collaborative
from examples.recommender.training import MEASUREMENTS, watch
from ps_service.launch.process import ProcessFailed
from trainer_client import PsError

TAKES = "one to two minutes"
PROGRAM = "examples.recommender.ratings.trainer"


@dataclass(frozen=True)
class Point:
    """The model at one moment of a training.

    Attributes:
        step: Steps that all trainers have taken together.
        ranked: HR@10 and NDCG@10 of the tests.
        rows: Of both tables.
        loss: The mean of the latest tenth of the steps.
        seconds: Since the first step.
    """

    step: int
    ranked: Ranked
    rows: list[int]
    loss: float
    seconds: float


def main(arguments: list[str]) -> int:
    """Runs the example and returns its exit code: 1 if HR@10 is lower than that of one process."""
    settings, console = parse(arguments), Console()
    compiles = "and one more the first time, when the owners compile,"
    plan = Plan(f"{TAKES}, {compiles}", shorter(settings, "epochs", "steps"), settings.out)
    settings = replace(settings, out=plan.folder)
    points: list[Point] = []
    try:
        source = source_of(settings)
        torch.set_num_threads(1)
        settings.out.mkdir(parents=True, exist_ok=True)
        _announce(settings, source, plan, console)
        asyncio.run(_train(settings, source, points, console))
        _say(console, "now the same in this process, with torch.nn.Embedding")
        course = _refer(settings, source, console)
    except (RatingsError, PsError, OSError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    except ProcessFailed as error:
        console.print(f"{error}; what it wrote is above", style="red", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    report = _report(settings, source, points, course)
    report.write(settings.out / "ratings.json")
    draw(report, settings.out / "ratings.png")
    _summary(report, settings, console)
    return 0 if report.course[-1][1].hits >= report.reference[-1][1].hits - settings.tolerance else 1


async def train(settings: Settings, source: LeaveOneOut) -> AsyncIterator[Point]:
    """Trains, and yields the model at about ten moments and at the end.

    Raises:
        PsError: An owner has failed.
        ProcessFailed: A process has ended early.
    """
    async with aclosing(watch(settings, source.steps, partial(Collaborative.attach, trains=False), PROGRAM)) as watched:
        async for model, moment in watched:
            await model.dense.pull()
            rows = await asyncio.gather(*(table.size() for table in model.tables))
            yield Point(moment.step, await model.test(source.tests), list(rows), moment.loss, moment.seconds)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _announce(settings: Settings, source: LeaveOneOut, plan: Plan, console: Console) -> None:
    users, items = source.ids
    _say(
        console,
        f"{settings.owners} owners, {settings.trainers} trainers; {len(users):,} users, {len(items):,} items; together "
        f"{source.steps:,} steps with {settings.batch_size} pairs each; {len(source.tests.users):,} tests",
    )
    _say(console, str(plan))


async def _train(settings: Settings, source: LeaveOneOut, points: list[Point], console: Console) -> None:
    async for point in train(settings, source):
        points.append(point)
        _show(console, point.step, source.steps, point.loss, point.ranked, f" {point.seconds:.1f} s")


def _refer(settings: Settings, source: LeaveOneOut, console: Console) -> list[tuple[int, Ranked]]:
    """What the training in one process reaches at the same moments."""
    reference, course = Reference(settings, source), []
    every = max(source.steps // MEASUREMENTS, 1)
    for step, loss in enumerate(reference.train(), 1):
        if step % every == 0 or step == source.steps:
            course.append((step, reference.test()))
            _show(console, step, source.steps, loss, course[-1][1])
    return course


def _show(console: Console, step: int, steps: int, loss: float, ranked: Ranked, more: str = "") -> None:
    _say(console, f"step {step}/{steps} loss {loss:.4f} HR@10 {ranked.hits:.4f} NDCG@10 {ranked.gain:.4f}{more}")


def _report(
    settings: Settings, source: LeaveOneOut, points: list[Point], reference: list[tuple[int, Ranked]]
) -> Report:
    best = None
    if settings.ratings is None:
        affinities = torch.from_numpy(planted.draw(settings.seed).affinities)
        tests = source.tests
        best = rank(affinities[tests.users.unsqueeze(1) - 1, tests.items - 1])
    seconds = max(points[-1].seconds, 1e-9)
    course = [(point.step, point.ranked) for point in points]
    popular = rank(source.popularity.double())
    return Report(course, reference, popular, best, points[-1].rows, settings.batch_size, points[-1].step / seconds)


def _summary(report: Report, settings: Settings, console: Console) -> None:
    reached = report.course[-1][1]
    console.print(
        f"owners    HR@10 [bold green]{reached.hits:.4f}[/], NDCG@10 [bold green]{reached.gain:.4f}[/]", highlight=False
    )
    lines = {"torch": report.reference[-1][1], "popular": report.popular, "at most": report.best}
    told = {"torch": "in one process", "popular": "by the number of ratings", "at most": "by the hidden preferences"}
    for name, ranked in lines.items():
        if ranked is not None:
            _say(console, f"{name:9} HR@10 {ranked.hits:.4f}, NDCG@10 {ranked.gain:.4f} {told[name]}")
    pairs = report.steps_per_second * report.batch_size
    _say(console, f"speed     {report.steps_per_second:.1f} steps/s, {pairs:,.0f} pairs/s")
    _say(console, f"rows      {report.rows[0]:,} users and {report.rows[1]:,} items")
    _say(console, f"figures   {settings.out / 'ratings.json'}")
    _say(console, f"picture   {settings.out / 'ratings.png'}")
