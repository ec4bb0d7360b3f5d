"""Tests the clicks of the recommender: Criteo's format, the generated set, and the AUC."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.recommender import planted
from examples.recommender.auc import auc
from examples.recommender.clicks import Clicks
from examples.recommender.criteo import CriteoError, CriteoFile, parse
from examples.recommender.planted import Planted
from examples.recommender.reference import main as refer

INTEGERS = ["1", "1", "5", "0", "1382", "4", "15", "2", "181", "1", "2", "", "2"]
VALUES = ["68fd1e64", "80e26c9b", "", *["fb936136"] * 22, "FFFFFFFF"]
LINE = "\t".join(["0", *INTEGERS, *VALUES]) + "\n"


@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40))
def test_the_auc_is_that_of_scikit_learn_with_ties(drawn: list[tuple[bool, int]]) -> None:
    # Importing takes a second, in every process that collects this file.
    from sklearn.metrics import roc_auc_score

    labels, scores = (torch.tensor([float(each[part]) for each in drawn]) for part in (0, 1))
    if labels.min() == labels.max():
        with pytest.raises(ValueError, match="needs clicks"):
            auc(labels, scores)
    else:
        assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_the_auc_refuses_scores_that_are_no_numbers() -> None:
    with pytest.raises(ValueError, match="NaN"):
        auc(torch.tensor([0.0, 1.0]), torch.tensor([0.5, float("nan")]))


def test_a_line_has_a_label_integers_and_values() -> None:
    clicks = parse([LINE, LINE.replace("0\t", "1\t-2\t", 1).replace("-2\t1\t", "-2\t", 1)])
    assert clicks.labels.tolist() == [0, 1]
    expected = torch.tensor([float(field or 0) for field in INTEGERS]).log1p()
    torch.testing.assert_close(clicks.dense[0], expected)
    assert clicks.dense[1, 0] == 0
    ids = clicks.ids[0]
    assert ids.dtype == torch.int64 and ids.unique().numel() == 5
    assert len(set(ids[3:25].tolist())) == 1, "equal values have equal ids"
    assert parse([]).ids.shape == (0, 26)


@pytest.mark.parametrize(
    "wrong",
    [
        LINE.replace("0\t", "2\t", 1),
        LINE.replace("68fd1e64", "68fd1e6"),
        LINE.replace("68fd1e64", "68fd1e6g"),
        LINE.replace("1382", "1382.0"),
        LINE.replace("1382", "9" * 19),
        LINE.rstrip() + "\t\n",
        "\n",
    ],
)
def test_a_line_in_another_format_is_an_error_that_names_it(wrong: str) -> None:
    with pytest.raises(CriteoError, match="day_0, line 12: not a label"):
        parse([LINE, LINE, wrong], first=10, path=Path("day_0"))


def test_the_generated_text_is_read_as_what_was_generated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted.main(["--steps", "12", "--batch-size", "10", "--seed", "3"])
    path = tmp_path / "clicks.txt"
    path.write_text(capsys.readouterr().out)
    file = CriteoFile(path, batch_size=10)
    assert file.steps == 10
    expected = list(Planted(3, 10, 12).batches())
    assert_equal(list(file.batches()), expected[:10])
    assert_equal(list(file.batches(1, 3)), expected[1:10:3])
    whole = Clicks(*(torch.cat(parts)[108:] for parts in zip(*expected, strict=True)))
    assert_equal([file.held_out()], [whole])
    assert len(list(CriteoFile(path, 10, steps=2).batches())) == 2


def test_a_file_that_is_too_short_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "clicks.txt"
    path.write_text(LINE * 9)
    with pytest.raises(CriteoError, match="9 lines"):
        CriteoFile(path, batch_size=2)
    assert refer(["--data", str(path)]) == 1
    assert "too few" in capsys.readouterr().err


def test_generated_clicks_are_the_same_for_a_seed_and_divided_among_trainers() -> None:
    source = Planted(0, batch_size=20, steps=5)
    whole = list(source.batches())
    assert_equal(list(source.batches(0, 2)), whole[::2])
    assert_equal(list(source.batches(1, 2)), whole[1::2])
    assert not torch.equal(whole[0].ids, next(Planted(1, 20, 5).batches()).ids)


def test_the_generated_probabilities_explain_the_clicks() -> None:
    source = Planted(0, 20, 1)
    labels, best = source.held_out().labels, source.best_scores()
    assert 0.83 < auc(labels, best) < 0.86
    # Calibrated: among the clicks of each tenth, as many as their probabilities say, within four standard deviations.
    for part in best.argsort().chunk(10):
        deviation = (best[part] * (1 - best[part])).sum().sqrt()
        assert abs(labels[part].sum() - best[part].sum()) < 4 * deviation
    assert np.isclose((source.drawn(0).values < 0).mean(), 0.01, atol=0.02)


def assert_equal(found: list[Clicks], expected: list[Clicks]) -> None:
    """Compares batches exactly."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for tensor, wanted in zip(one, other, strict=True):
            torch.testing.assert_close(tensor, wanted, rtol=0, atol=0)
