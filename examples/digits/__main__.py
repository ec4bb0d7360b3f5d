"""Runs the whole example: owner, trainers, evaluation, report and picture."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace

from rich.console import Console
from torch import Tensor

import trainer_client as tc
from examples.digits import data, picture
from examples.digits.data import Digits
from examples.digits.evaluation import predict
from examples.digits.idx import IdxError
from examples.digits.launch import OWNER, Training, start_owner, train
from examples.digits.process import ChildFailed, Children
from examples.digits.progress import display
from examples.digits.report import Report
from examples.digits.settings import Settings, parse
from examples.plan import Plan

TAKES = "half a minute to two minutes"


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
    async with Children(settings.out) as children:
        with display(console, settings.trainers) as shown:
            shown.say(f"{len(digits.train)} of {digits.name} to learn, {len(digits.held_out)} held out")
            shown.say(str(plan))
            owner, address = await start_owner(children, settings, shown)
            shown.say(f"{OWNER} is serving on {address}")
            training = await train(children, owner, address, settings, shown)
            predictions = await predict(address, digits.held_out.images, shown.evaluated)
        if code := await owner.end(grace_seconds=10):
            raise owner.failed(f"ended with code {code} when it was asked to drain")
    return training, predictions


def _cancel_on_signals() -> None:
    """Makes Ctrl-C, SIGTERM and SIGHUP cancel the run, which then ends its children."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def _report(settings: Settings, digits: Digits, training: Training, predictions: Tensor) -> Report:
    steps = sum(map(len, training.losses))
    return Report(
        accuracy=(predictions == digits.held_out.labels).double().mean().item(),
        steps=steps,
        trainers=settings.trainers,
        seconds=training.seconds,
        steps_per_second=steps / training.seconds,
        loss=training.losses,
    )


def _summary(report: Report, settings: Settings, console: Console) -> None:
    speed = f"{report.steps_per_second:.1f} steps/s ({report.steps} steps in {report.seconds:.1f} s)"
    console.print(f"accuracy  [bold green]{report.accuracy:.4f}[/]", highlight=False)
    for label, value in (
        ("speed", speed),
        ("figures", settings.out / "demo.json"),
        ("picture", settings.out / "demo.png"),
    ):
        console.print(f"{label:<9} {value}", highlight=False, markup=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> int:
    """Runs the example and returns its exit code."""
    settings = parse(arguments)
    console = Console()
    try:
        digits = data.load(settings.data)
        plan = Plan(TAKES, settings.epochs is not None and settings.epochs < digits.epochs, settings.out)
        settings = replace(settings, out=plan.folder)
        training, predictions = asyncio.run(run(settings, digits, plan, console))
        report = _report(settings, digits, training, predictions)
        report.write(settings.out / "demo.json")
        picture.draw(settings.out / "demo.png", report, digits.held_out, predictions)
    except (IdxError, ChildFailed, tc.PsError) as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped; nothing is left running", highlight=False)
        return 130
    _summary(report, settings, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
