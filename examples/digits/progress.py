"""Shows the progress of a run: bars in a terminal, otherwise plain lines."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from examples.digits.messages import Finish, Message, Start, Step

# One plain line for each tenth of a trainer's steps.
PLAIN_LINES = 10


class Display(Protocol):
    """The interface for showing the progress of a run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """Shows a line of text."""

    def show(self, message: Message) -> None:
        """Shows a message of a trainer."""

    def evaluated(self, done: int, total: int) -> None:
        """Shows the number of held-out digits that were evaluated."""


def display(console: Console, trainers: int) -> Display:
    """Returns bars when the console is a terminal, and lines when it is not."""
    return Bars(console, trainers) if console.is_terminal else Lines(console)


class Meter:
    """Counts one trainer's steps per second."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._began = time.perf_counter()

    def rate(self, step: int) -> float:
        """Returns steps per second so far, at the step just taken."""
        return step / max(time.perf_counter() - self._began, 1e-9)


class Bars:
    """One bar per trainer, and at the end one for the evaluation."""

    def __init__(self, console: Console, trainers: int) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            expand=True,
        )
        # All at once, so that their order does not depend on the order of connecting. Without a total they pulse.
        self._tasks = [
            self._progress.add_task(f"trainer {rank}", total=None, note="starting") for rank in range(trainers)
        ]
        self._meters: dict[int, Meter] = {}
        self._evaluation: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Shows a line above the bars."""
        self._progress.console.print(text, highlight=False)

    def show(self, message: Message) -> None:
        """Moves a trainer's bar."""
        match message:
            case Start(rank, steps):
                self._meters[rank] = Meter(steps)
                self._progress.update(self._tasks[rank], total=steps, note="connected")
            case Step(rank, step, loss):
                note = f"loss [cyan]{loss:6.4f}[/] [green]{self._meters[rank].rate(step):5.1f}[/] steps/s"
                self._progress.update(self._tasks[rank], completed=step, note=note)
            case Finish():
                pass

    def evaluated(self, done: int, total: int) -> None:
        """Moves the bar of the evaluation."""
        if self._evaluation is None:
            self._evaluation = self._progress.add_task("evaluation", total=total, note="digits read")
        self._progress.update(self._evaluation, completed=done)


class Lines:
    """Plain lines, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._meters: dict[int, Meter] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        """Prints a line."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def show(self, message: Message) -> None:
        """Prints a trainer's start, finish, and some of its steps."""
        match message:
            case Start(rank, steps):
                self._meters[rank] = Meter(steps)
                self.say(f"trainer {rank} is connected, {steps} steps to go")
            case Step(rank, step, loss):
                meter = self._meters[rank]
                if step % max(meter.steps // PLAIN_LINES, 1) == 0:
                    self.say(f"trainer {rank} step {step}/{meter.steps} loss {loss:.4f} {meter.rate(step):.1f} steps/s")
            case Finish(rank, _, seconds):
                self.say(f"trainer {rank} has finished after {seconds:.1f} s")

    def evaluated(self, done: int, total: int) -> None:
        """Prints a line when all digits were evaluated."""
        if done == total:
            self.say(f"evaluated on {total} held-out digits")
