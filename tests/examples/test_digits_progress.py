"""What is shown while the example works."""

from __future__ import annotations

import io

from rich.console import Console

from examples.digits.messages import Finish, Start, Step
from examples.digits.progress import Bars, Lines, display


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    """A console of 100 columns that writes to a string."""
    output = io.StringIO()
    return Console(file=output, force_terminal=terminal, width=100, color_system=None), output


def run(terminal: bool) -> str:
    """Shows a run of one trainer with twenty steps and returns what was written."""
    where, output = console(terminal)
    with display(where, trainers=1) as shown:
        shown.say("ps0 starts")
        shown.show(Start(0, 20))
        for step in range(1, 21):
            shown.show(Step(0, step, 1 / step))
        shown.show(Finish(0, 20, 1.5))
        shown.evaluated(5, 10)
        shown.evaluated(10, 10)
    return output.getvalue()


def test_a_terminal_gets_bars_and_anything_else_lines() -> None:
    assert isinstance(display(console(terminal=True)[0], trainers=1), Bars)
    assert isinstance(display(console(terminal=False)[0], trainers=1), Lines)


def test_bars_end_full() -> None:
    shown = run(terminal=True)
    assert "ps0 starts" in shown
    *_, trainer = (line for line in shown.splitlines() if "trainer 0" in line)
    assert "20/20" in trainer
    assert "loss 0.0500" in trainer
    assert "steps/s" in trainer
    *_, evaluation = (line for line in shown.splitlines() if "evaluation" in line)
    assert "10/10" in evaluation


def test_lines_say_a_tenth_of_the_steps_and_have_no_control_characters() -> None:
    shown = run(terminal=False)
    assert all(line.isprintable() for line in shown.splitlines())
    assert sum(" step " in line for line in shown.splitlines()) == 10
    assert "trainer 0 step 20/20 loss 0.0500" in shown
    assert "trainer 0 has finished after 1.5 s" in shown
    assert shown.count("evaluated") == 1
