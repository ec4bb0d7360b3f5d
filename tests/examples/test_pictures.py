"""Tests that the pictures of examples keep their curves inside their axes, and their legends and labels legible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from examples.cartpole import picture as cartpole
from examples.cartpole.report import Report as CartpoleReport
from examples.digits import chaos_picture, data
from examples.digits import picture as digits
from examples.digits.report import ChaosReport
from examples.digits.report import Report as DigitsReport
from examples.mpi_ps import report as mpi
from examples.mpi_ps.modes import MODES
from examples.mpi_ps.settings import Settings as MpiSettings
from examples.mpi_ps.training import Point as MpiPoint
from examples.mpi_ps.training import Run
from examples.recommender import report as recommender
from examples.recommender.on_ray import report as on_ray
from examples.recommender.ratings import report as ratings
from examples.recommender.ratings.ranking import Ranked
from examples.recommender.training import Point
from examples.token_vectors import report as vectors
from examples.token_vectors.training import Trained
from examples.word_language_model import picture as words
from examples.word_language_model.report import Report as WordsReport
from examples.word_language_model.training import Epoch

SLACK = 1.5
"""Pixels by which a label may be beyond an edge."""


def cartpole_of(path: Path) -> None:
    rewards = [[min(500.0, 9.0 * 1.05**n), 500.0] for n in range(120)]
    running = list(np.linspace(8.9, 499.0, 120))
    cartpole.draw(path, CartpoleReport(True, 475.0, 120, 2, 0, 80_000, 1234.5, rewards, running))


def digits_of(path: Path) -> None:
    held_out = data.load().held_out
    loss = [list(2.3 * np.exp(-np.arange(540) / 90) + 0.2 + seed / 9) for seed in range(2)]
    digits.draw(path, DigitsReport(0.9889, 1080, 2, 1234.5, 1234.5, loss), held_out, held_out.labels)


def chaos_of(path: Path) -> None:
    times = [[seed + 0.2 * n for n in range(540) if n % 40 < 25] for seed in (0.1, 0.3)]
    loss = [list(2.3 * np.exp(-np.array(each) / 30) + 0.2) for each in times]
    kills = [[8.0 * n + 5, 8.0 * n + 8] for n in range(13)]
    steps = sum(map(len, times))
    pauses = [3.4, 12.7]
    chaos_picture.draw(path, ChaosReport(0.9889, steps, 2, 1108.5, 6.2, loss, times, kills, pauses, 26, steps))


def chaos_without_kills_of(path: Path) -> None:
    """Of so many trainers."""
    times = [[1.0, 2.0, 3.0]] * 8
    chaos_picture.draw(path, ChaosReport(1.0, 24, 8, 3.1, 6.2, [[2.3, 1.0, 0.5]] * 8, times, [], [], 0, 24))


def mpi_of(path: Path) -> None:
    bytes_sent = {"sync, top 1 %": 57_800_000, "local SGD, every 10": 240_900_000}
    runs = []
    for name in MODES:
        points = [
            MpiPoint(20 * n / 100, int(bytes_sent.get(name, 2_400_000_000) * n / 100), 2.3 * 0.97**n, 0.9)
            for n in range(101)
        ]
        runs.append(Run(name, points))
    mpi.draw(runs, path)
    assert mpi.table(runs, MpiSettings()).row_count == len(MODES)


def mpi_at_first_of(path: Path) -> None:
    """So few bytes after the first tenth of a second, of one mode."""
    mpi.draw([Run("sync", [MpiPoint(n / 10, 40_000 * n, 2.3 - n / 10, 0.1) for n in range(5)])], path)


def recommender_of(path: Path) -> None:
    steps = range(80, 801, 80)
    points = [Point(n, 0.79 - 20 / n, [n * (1 + each) for each in range(26)], 0.5, n / 8) for n in steps]
    reference = [(n, 0.792 - 22 / n) for n in steps]
    recommender.draw(recommender.Report(0.79, reference, 0.8444, 512, 8.2, points), path)


def recommender_on_ray_of(path: Path) -> None:
    steps = [*np.arange(0.0, 40.0, 0.2), *np.arange(60.0, 100.0, 0.2)]
    auc = [(0.0, 0.5), (40.0, 0.74), (62.0, 0.75), (100.0, 0.79)]
    moved = ("127.0.0.2:1", "127.0.0.3:1")
    on_ray.draw(on_ray.Report(steps, auc, 40.0, 54.0, 59.0, moved, {"ps0": 400}), path)


def recommender_below_chance_of(path: Path) -> None:
    points = [Point(1, 0.49, [0] * 26, float("nan"), 1.0)]
    recommender.draw(recommender.Report(0.49, [(1, 0.5)], None, 512, 8.2, points), path)


def ratings_of(path: Path) -> None:
    course = [(n, Ranked(0.61 - 30 / n, 0.39 - 20 / n)) for n in range(191, 1916, 191)]
    popular, best = Ranked(0.391, 0.2112), Ranked(0.659, 0.4409)
    ratings.draw(ratings.Report(course, course, popular, best, [1000, 1189], 512, 80.0), path)


def vectors_of(path: Path) -> None:
    steps = list(range(40, 801, 40))
    rows = [[20 * n, min(40 * n, 16_000)] for n in steps]
    trained = Trained(different=25_270, losses=[4.16 - n / 600 for n in steps], steps=steps, rows=rows)
    vectors.draw(trained, path)


def words_of(path: Path) -> None:
    perplexities = [1996.9, 245.0, 185.0, 90.8, 60.8, 48.2]
    epochs = [
        Epoch(n, 20.0 / 4 ** (n > 3), None if n == 0 else 0.8 * each, each, 102, 4.0)
        for n, each in enumerate(perplexities)
    ]
    words.draw(path, words_report(epochs))


def words_that_learn_nothing_of(path: Path) -> None:
    """The perplexity rises, and is far from that of word frequencies."""
    words.draw(path, words_report([Epoch(0, 20.0, None, 190.0, 0, 0.0), Epoch(1, 20.0, 900.0, 1300.0, 102, 4.0)]))


def words_report(epochs: list[Epoch]) -> WordsReport:
    counts = {"learnt": 71_294, "held_out": 8634, "vocabulary": 2000}
    return WordsReport({}, "3.11.7", counts, 0.059, 234.9, epochs, None, 0)


PICTURES = (
    cartpole_of, digits_of, chaos_of, chaos_without_kills_of, mpi_of, mpi_at_first_of, recommender_of,
    recommender_below_chance_of, recommender_on_ray_of, ratings_of, vectors_of, words_of, words_that_learn_nothing_of,
)  # fmt: skip


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would be written."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


@pytest.mark.parametrize("picture", PICTURES, ids=lambda each: each.__name__.removesuffix("_of"))
def test_curves_are_inside_and_legends_and_labels_legible(
    picture: Callable[[Path], None], drawn: list[Figure], tmp_path: Path
) -> None:
    picture(tmp_path / "picture.png")
    (figure,) = drawn
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    whole = figure.get_tightbbox(canvas.get_renderer())
    width, height = figure.get_size_inches()
    slack = SLACK / figure.dpi
    assert whole.x0 > -slack and whole.y0 > -slack and whole.x1 < width + slack and whole.y1 < height + slack
    for axes in figure.axes:
        if not axes.axison or axes.images:
            continue
        assert axes.get_xlabel() and (axes.get_ylabel() or axes.get_title("left") or shares(axes, figure)), "labels"
        inside(axes, canvas)


def shares(axes: Axes, figure: Figure) -> bool:
    """Whether the label stands at the axes beside."""
    return any(axes.get_shared_y_axes().joined(axes, other) for other in figure.axes if other is not axes)


def inside(axes: Axes, canvas: FigureCanvasAgg) -> None:
    """Fails if a curve leaves the axes, or a legend is above its points."""
    legend = axes.get_legend()
    box = legend.get_window_extent(canvas.get_renderer()) if legend else None
    for points in [*map(lines, axes.lines), *map(dots, axes.collections)]:
        (left, bottom), (right, top) = np.sort(np.array([axes.get_xlim(), axes.get_ylim()]).T, axis=0)
        x, y = points.T
        assert (x >= left).all() and (x <= right).all(), (left, x.min(), x.max(), right)
        assert (y >= bottom).all() and (y <= top).all(), (bottom, y.min(), y.max(), top)
        if box is not None:
            assert not any(box.contains(*place) for place in axes.transData.transform(points))


def lines(line: object) -> np.ndarray:
    """The finite points of a curve of the axes; none of a line across all of them."""
    points = np.column_stack([np.asarray(each, float) for each in line.get_data()])  # type: ignore[attr-defined]
    across = line.get_transform() != line.axes.transData  # type: ignore[attr-defined]
    return points[:0] if across else points[np.isfinite(points).all(1)]


def dots(found: object) -> np.ndarray:
    """The points of a scatter plot, or the corners of an area."""
    offsets = np.asarray(found.get_offsets())  # type: ignore[attr-defined]
    paths = [path.vertices for path in found.get_paths()]  # type: ignore[attr-defined]
    areas = type(found).__name__ in ("PolyCollection", "FillBetweenPolyCollection")
    return np.concatenate(paths) if areas else offsets


def test_a_curve_that_leaves_its_axes_is_noticed(tmp_path: Path) -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], [0, 2])
    axes.set_ylim(0, 1)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    with pytest.raises(AssertionError):
        inside(axes, canvas)
