"""Tests of names that are close to others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_wire import close_names, policies
from ps_wire.tables.options import Adagrad

KNOWN = ["my_reco.Tower", "my_reco.Towers", "torch.nn.Linear", "items", "items.optimizer"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("my_reco.Towr", "my_reco.Tower"),
        ("Tower", "my_reco.Tower"),
        ("MY_RECO.TOWER", "my_reco.Tower"),
        ("itms", "items"),
        ("item.optimizer", "items.optimizer"),
        ("torch.nn.Liner", "torch.nn.Linear"),
        ("something", ""),
        ("", ""),
        ("x" * 129, ""),
    ],
)
def test_the_closest_name_is_found(name: str, found: str) -> None:
    assert close_names.closest(name, KNOWN) == found
    assert close_names.hint(name, KNOWN) == (f"; did you mean {found!r}?" if found else "")


def test_one_of_many_that_begin_alike_is_found_by_its_end() -> None:
    known = [f"tower_{number:05}" for number in range(10_000)]
    assert close_names.closest("towr_07777", known) == "tower_07777"


@given(st.text(max_size=140), st.lists(st.text(max_size=200), max_size=20))
def test_a_hint_is_one_of_the_names_and_short(name: str, known: list[str]) -> None:
    found = close_names.closest(name, known)
    assert found == "" or found in known
    assert len(found) <= 192


def test_ten_thousand_names_cost_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def count(name: str, names: list[str], **_: object) -> list[str]:
        compared.append(len(names))
        return []

    monkeypatch.setattr(close_names.difflib, "get_close_matches", count)
    for length in (20, 100):
        close_names.closest("b" * length, [f"{'b' * (length - 5)}{number:05}" for number in range(10_000)])
    assert compared == [64, 6]


def test_arguments_of_policies_and_options_are_suggested() -> None:
    with pytest.raises(TypeError, match=r"'trainrs'; did you mean 'trainers'\?"):
        policies.Sync(trainrs=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'epz'; did you mean 'eps'\?"):
        Adagrad(epz=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'bound'$"):
        policies.BoundedStaleness()  # type: ignore[call-arg]
    assert policies.Sync(trainers=2).trainers == 2
    assert close_names.argument_hint(print, {"sepp": ""}) == "; did you mean 'sep'?"
    assert close_names.argument_hint(dict, {"sepp": ""}) == ""
