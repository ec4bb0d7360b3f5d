"""Programs of several processes. Those with as many processes may run in the same ones, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from tests.forking.process import Forking

Run = Callable[..., list[str]]


def runner(forking: Forking, module: str, *in_turn: tuple[int, Sequence[str]]) -> Run:
    """Gives `run(program, processes, *arguments)`, which returns the lines that a program has printed, in order.

    Args:
        forking: Starts the processes.
        module: Where the programs are.
        in_turn: Numbers of processes, and programs with their arguments that run in these one after the other, once.
    """

    @cache
    def lines(processes: int, *programs: str) -> list[str]:
        with forking.start(module, str(processes), *programs) as group:
            output = group.communicate(timeout=60)
            assert group.returncode == 0, output
        return sorted(output.splitlines())

    def run(program: str, processes: int = 1, *arguments: str) -> list[str]:
        what = " ".join((program, *arguments))
        together = next((each for size, each in in_turn if size == processes and what in each), (what,))
        begin = f"{what}: "
        return [line.removeprefix(begin) for line in lines(processes, *together) if line.startswith(begin)]

    return run
