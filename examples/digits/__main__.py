"""Runs the whole example: owner, trainers, evaluation, report and picture."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from torch import Tensor

import trainer_client as tc
from examples.digits import chaos, chaos_picture, data, picture
from examples.digits.data import Digits
from examples.digits.evaluation import predict
from examples.digits.idx import IdxError
from examples.digits.launch import Training, train
from examples.digits.log import ChildFailed
from examples.digits.owner import NAME, Owner
from examples.digits.progress import display
from examples.digits.report import ChaosReport, Report
from examples.digits.settings import Settings, parse
from examples.plan import Plan
from ps_service.launch.processes import Processes

TAKES = "half a minute to two minutes"
CHAOS_TAKES = "one to four minutes"


async def run(settings: Settings, digits: Digits, plan: Plan, console: Console) -> tuple[Training, Tensor]:
    """Trains and evaluates; all processes that it starts have ended when it returns or raises.

    Returns:
        The messages of the trainers, and the predictions for the held-out digits, ``[N]`` int64.

    Raises:
        ChildFailed: the owner or a trainer failed.
        tc.PsError: the owner could not be asked for predictions.
        asyncio.CancelledError: Ctrl-C, SIGTERM or SIGHUP.
    """
    _cancel_on_signals()
    with ExitStack() as stack:
        async with Processes() as processes:
            data_dir = None if settings.chaos is None else Path(stack.enter_context(_folder(settings.out)))
            with display(console, settings.trainers) as shown:
                shown.say(f"{len(digits.train)} of {digits.name} to learn, {len(digits.held_out)} held out")
                shown.say(str(plan))
                owner = Owner(processes, settings, shown, data_dir)
                await owner.start()
                shown.say(f"{NAME} is serving on {owner.address}")
                training = await train(processes, owner, settings, shown)
                predictions = await predict(owner.address, digits.held_out.images, shown.evaluated)
                training.version = await chaos.version(owner.address)
            await owner.end()
    return training, predictions


def _folder(out: Path) -> TemporaryDirectory[str]:
    """A data directory, which is removed after the processes have ended."""
    return TemporaryDirectory(prefix=f"{NAME}-", dir=out)


def _cancel_on_signals() -> None:
    """Makes Ctrl-C, SIGTERM and SIGHUP cancel the run, which then ends its children."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def _report(settings: Settings, digits: Digits, training: Training, predictions: Tensor) -> Report:
    steps = sum(map(len, training.losses))
    results = {
        "accuracy": (predictions == digits.held_out.labels).double().mean().item(),
        "steps": steps,
        "trainers": settings.trainers,
        "seconds": training.seconds,
        "steps_per_second": steps / training.seconds,
        "loss": training.losses,
    }
    if settings.chaos is None:
        return Report(**results)
    return ChaosReport(
        **results,
        times=[[taken - training.began for taken in each] for each in training.times],
        kills=[[kill.at - training.began, kill.back - training.began] for kill in training.kills],
        pauses=chaos.pauses(training.kills, training.times),
        repeated=training.repeated,
        version=training.version,
    )


def _summary(report: Report, settings: Settings, name: str, console: Console) -> None:
    speed = f"{report.steps_per_second:.1f} steps/s ({report.steps} steps in {report.seconds:.1f} s)"
    console.print(f"accuracy  [bold green]{report.accuracy:.4f}[/]", highlight=False)
    if isinstance(report, ChaosReport):
        console.print(chaos.table(report))
    for label, value in (
        ("speed", speed),
        ("figures", settings.out / f"{name}.json"),
        ("picture", settings.out / f"{name}.png"),
    ):
        console.print(f"{label:<9} {value}", highlight=False, markup=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs the example and returns its exit code."""
    settings = parse(arguments)
    console = Console()
    try:
        digits = data.load(settings.data)
        plan = Plan(
            TAKES if settings.chaos is None else CHAOS_TAKES,
            settings.epochs is not None and settings.epochs < digits.epochs,
            settings.out,
        )
        settings = replace(settings, out=plan.folder)
        training, predictions = asyncio.run(run(settings, digits, plan, console))
        report = _report(settings, digits, training, predictions)
        name = "demo" if settings.chaos is None else "chaos"
        report.write(settings.out / f"{name}.json")
        if isinstance(report, ChaosReport):
            chaos_picture.draw(settings.out / f"{name}.png", report)
        else:
            picture.draw(settings.out / f"{name}.png", report, digits.held_out, predictions)
    except (IdxError, ChildFailed, tc.PsError) as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped; nothing is left running", highlight=False)
        return 130
    _summary(report, settings, name, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
