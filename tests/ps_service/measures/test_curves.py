"""Tests the curves of an owner: what has one, how many there are, and what is told of them."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from ps_service.measures.curve import MOST_POINTS
from ps_service.measures.curves import LONGEST_NAME, MOST_CURVES, MOST_VALUES, CurveNews, Curves
from tests.ps_service.monitoring.curves import of


def only(curves: Curves, known: dict[int, int] | None = None) -> CurveNews:
    (found,) = curves.news(known or {}).fresh
    return found


def test_numbers_and_tensors_of_one_number_have_a_curve() -> None:
    curves = Curves()
    values = {
        **{"loss": 0.5, "samples": 128, "right": True, "scalar": torch.tensor(2.0), "one": torch.tensor([3])},
        **{"hits": torch.ones(2), "phase": torch.tensor(1j), "host": {"1f0c2a9e": "gpu-3"}, "kept": {"1f0c2a9e": 1.0}},
        **{"huge": 10**400},
    }
    of(curves, "net.optimizer").add(7, values)
    found = {each.name: (each.points.mean[0], each.points.not_finite[0]) for each in curves.news({}).fresh}
    assert math.isnan(found.pop("huge")[0])
    assert found == {"loss": (0.5, 0), "samples": (128, 0), "right": (1, 0), "scalar": (2, 0), "one": (3, 0)}
    assert curves.left_out == 0


def test_an_optimizer_without_values_takes_no_room() -> None:
    curves = Curves()
    for index in range(MOST_CURVES):
        of(curves, f"silent{index}")
    of(curves, "net.optimizer").add(1, {"loss": 1.0})
    assert len(curves.news({}).numbers) == 1


def test_what_is_beyond_the_names_of_an_optimizer_is_counted() -> None:
    curves = Curves()
    one = of(curves, "net.optimizer")
    for version in (1, 2):
        one.add(version, {f"value{index}": 0.0 for index in range(MOST_VALUES + 3)})
    assert [each.name for each in curves.news({}).fresh] == [f"value{index}" for index in range(MOST_VALUES)]
    assert curves.news({}).left_out == 6


def test_optimizers_that_are_gone_make_room_and_others_do_not() -> None:
    curves = Curves()
    made = [of(curves, f"net{index}") for index in range(MOST_CURVES // MOST_VALUES)]
    for each in made:
        each.add(1, {f"value{index}": 0.0 for index in range(MOST_VALUES)})
    late = of(curves, "late")
    late.add(1, {"loss": 1.0})
    assert len(curves.news({}).numbers) == MOST_CURVES and curves.left_out == 1
    made[3].is_ended = made[5].is_ended = True
    found = curves.news({})
    assert {each.optimizer for each in found.fresh if each.number in found.ended} == {"net3", "net5"}
    late.add(2, {"loss": 1.0})
    names = {each.optimizer for each in curves.news({}).fresh}
    assert names == {"late", *(f"net{index}" for index in range(len(made)) if index != 3)}
    assert len(curves.news({}).numbers) == MOST_CURVES - MOST_VALUES + 1 and curves.left_out == 1


def test_long_names_are_cut() -> None:
    curves = Curves()
    of(curves, "n" * 1000).add(1, {"loss": 1.0})
    assert only(curves).optimizer == "n" * (LONGEST_NAME - 1) + "…"


def test_only_what_is_new_is_told() -> None:
    curves = Curves()
    one = of(curves, "net.optimizer")
    for version in range(1, MOST_POINTS + 1):
        one.add(version, {"loss": float(version)})
    first = only(curves)
    assert (first.start, len(first.points.mean), first.seen, first.width) == (0, MOST_POINTS, MOST_POINTS, 1)
    assert curves.news({first.number: first.seen}).fresh == []
    one.add(MOST_POINTS + 1, {"loss": 0.0})  # each two are one point now
    second = only(curves, {first.number: first.seen})
    assert (second.start, len(second.points.mean), second.width) == (0, MOST_POINTS // 2 + 1, 2)
    one.add(MOST_POINTS + 2, {"loss": 2.0})  # the last point has changed
    third = only(curves, {first.number: second.seen})
    assert (third.start, list(third.points.mean)) == (MOST_POINTS // 2, [1.0])
    # Who has seen more than there is has seen another owner.
    assert only(curves, {first.number: 10**9}).start == 0


def test_of_other_namespaces_nothing_is_told() -> None:
    curves = Curves()
    for name in ("team::net.optimizer", "net.optimizer"):
        of(curves, name).add(1, {"loss": 1.0})
    found = curves.news({}, lambda name: name.startswith("team::"))
    assert [each.optimizer for each in found.fresh] == ["team::net.optimizer"] and len(found.numbers) == 1


def test_the_bounds_are_what_the_page_says() -> None:
    text = Path("docs/page.md").read_text("utf-8")
    for words in (f"at most {MOST_POINTS} points", f"{MOST_VALUES} values of one optimizer", f"{MOST_CURVES} curves"):
        assert words in text
