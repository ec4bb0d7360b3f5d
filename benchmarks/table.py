"""Shows the rows as they are measured: a table with bars in a terminal, otherwise plain lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.fleet import BARE, DURABLE, ENCRYPTED, GLOO, LOCAL, LOCAL_PAUSED, OURS, OURS_TCP, TORCH, TORCH_TCP
from benchmarks.report import AT_MOST, Report
from benchmarks.rows import Row

COLUMNS: Final = {
    OURS: "ours",
    TORCH: "torch rpc",
    OURS_TCP: "ours, TCP",
    TORCH_TCP: "torch rpc, TCP",
    LOCAL: "local",
    LOCAL_PAUSED: "local, pauses",
}


_NARROW = 105
"""Width of a terminal below which the table leaves out the results over TCP; their ratio stays."""
_ROOMY = 165
"""Width of a terminal from which the table shows the spread."""


class Display(Protocol):
    """The interface for showing the progress of a run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """Shows a message about work other than measuring."""

    def begin(self, row: Row) -> None:
        """Shows that a row begins."""

    def advance(self, row: Row, number: int) -> None:
        """Shows that a round of the row has ended."""

    def finish(self, report: Report) -> None:
        """Shows the result of a row."""


def display(console: Console, rows: int, rounds: Callable[[Row], int]) -> Display:
    """Bars and a growing table when the console is a terminal, and lines when it is not."""
    return Growing(console, rows, rounds) if console.is_terminal else Lines(console, rows)


class Growing:
    """The table, growing, above two bars: rows, and rounds of the present one."""

    def __init__(self, console: Console, rows: int, rounds: Callable[[Row], int]) -> None:
        self._reports: list[Report] = []
        self._progress = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._rounds = rounds
        self._all = self._progress.add_task("rows", total=rows)
        self._row = self._progress.add_task("", visible=False)
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The caller prints the whole table once more.
        self._reports.clear()
        self._progress.update(self._row, visible=False)
        self._live.__exit__(kind, error, trace)

    def _render(self) -> Group:
        if not self._reports:
            return Group(self._progress)
        return Group(table(self._reports, self._live.console.width), self._progress)

    def say(self, text: str) -> None:
        self._progress.reset(self._row, description=escape(text), total=None, visible=True)

    def begin(self, row: Row) -> None:
        self._progress.reset(self._row, description=row.name, total=self._rounds(row), visible=True)

    def advance(self, row: Row, number: int) -> None:
        self._progress.update(self._row, completed=number)

    def finish(self, report: Report) -> None:
        self._reports.append(report)
        self._progress.advance(self._all)


class Lines:
    """A line per row, for logs and pipes."""

    def __init__(self, console: Console, rows: int) -> None:
        self._console = console
        self._rows = rows
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        self._print(text)

    def begin(self, row: Row) -> None:
        pass

    def advance(self, row: Row, number: int) -> None:
        pass

    def finish(self, report: Report) -> None:
        self._done += 1
        figures = [
            f"{name} {number(report[side])}"
            for side, name in (
                *COLUMNS.items(),
                (GLOO, "gloo"),
                (BARE, "bare"),
                *DURABLE.items(),
                *zip(ENCRYPTED, ENCRYPTED, strict=True),
            )
            if report[side] is not None
        ]
        ratios = f"; speedup {number(report['speedup'])}, over TCP {number(report['speedup_tcp'])}"
        told = f"{', '.join(figures)} {report['unit']}{ratios if report['speedup'] else ''}"
        self._print(f"{self._done}/{self._rows} {report['name']}: {told}")
        for column, error in report["errors"].items():
            self._print(f"  ERROR {column}: {error}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def table(reports: Sequence[Report], width: int) -> Table:
    """The rows as a table. Ratios are followed by their quartiles, if there is room, and by the target."""
    made = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    made.add_column("row", no_wrap=True)
    sides = [side for side in COLUMNS if width >= _NARROW or side not in (OURS_TCP, TORCH_TCP, LOCAL_PAUSED)]
    for name in (COLUMNS[side] for side in sides):
        made.add_column(name.replace(" ", "\n", 1), justify="right", no_wrap=True)
    made.add_column("unit", no_wrap=True)
    for name in ("speedup", "speedup,\nTCP", "over local,\npauses"):
        made.add_column(name, justify="right", no_wrap=True)
    for report in reports:
        made.add_row(
            report["name"],
            *(_cell(report, side) for side in sides),
            report["unit"],
            _ratio(report, "speedup", width >= _ROOMY),
            _ratio(report, "speedup_tcp", width >= _ROOMY),
            _ratio(report, "over_paused", width >= _ROOMY) if "over_paused" in report else "-",
        )
    return made


def remarks(report: Report) -> list[str]:
    """Remarks on a row, in rich's markup."""
    said = []
    if report.get("over_local"):
        said.append(f"{report['name']}: {_ratio(report, 'over_local')} of the time of local torch without pauses")
    if "over_one_owner" in report["target"]:
        said.append(f"{report['name']}: {_ratio(report, 'over_one_owner')} of the steps of one owner")
    if "over_baseline" in report["target"]:
        said.append(f"{report['name']}: {_ratio(report, 'over_baseline')} of the time of the same work in its baseline")
    said += [f"{report['name']}, {column}: {lost}" for column, lost in report["lost"].items()]
    said += [f"[red]{report['name']}, {column}: {escape(error)}[/]" for column, error in report["errors"].items()]
    return said


def _cell(report: Report, side: str) -> str:
    if side == TORCH and report.get(GLOO) is not None:
        return f"gloo {number(report[GLOO])}"
    return "[red]error[/]" if side in report["errors"] else number(report[side])


def _ratio(report: Report, name: str, spread_too: bool = True) -> str:
    figure, wanted, spread = report[name], report["target"].get(name), report["spread"][name]
    if figure is None:
        return "[red]none[/]" if wanted else "-"
    text = f"{figure:.2f} ({spread['q1']:.2f}-{spread['q3']:.2f})" if spread_too else f"{figure:.2f}"
    if wanted is None:
        return text
    sign, color = ("✓", "green") if report["reached"][name] else ("✗", "red")
    return f"[{color}]{text} {sign} {'≤' if name in AT_MOST else '≥'} {wanted:g}[/]"


def number(value: Any) -> str:
    """A result with three digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
