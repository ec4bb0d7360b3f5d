"""Tests of tallies against plain sums, in any order and grouping."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps_service.training import reported_values as tallies
from ps_service.training.reported_values import ReportedValues, Tally
from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.reported import Reported

ANNA, BERT = b"a" * 16, b"b" * 16
NUMBERS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.booleans(), st.integers(-1000, 1000).map(float))


def title(trainer: bytes) -> str:
    return trainer.hex()[:8]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([ANNA, BERT]),
            st.fixed_dictionaries({}, optional={"mean": NUMBERS, "sum": NUMBERS, "keep": st.integers(0, 9)}),
            st.booleans(),
        )
    )
)
def test_a_tally_is_that_of_all_its_values_however_they_are_grouped(
    gradients: list[tuple[bytes, dict[str, Any], bool]],
) -> None:
    total, part = Tally(), Tally()
    for trainer, values, ends in gradients:
        part.add(trainer, {name: Reported(name, value) for name, value in values.items()})
        if ends:
            total.merge(part)
            part = Tally()
    total.merge(part)
    found = total.values()
    for name in ("mean", "sum", "keep"):
        given = [(trainer, values[name]) for trainer, values, _ in gradients if name in values]
        assert total.counts.get(name, 0) == len(given)
        if not given:
            assert name not in found
        elif name == "keep":
            assert found[name] == {title(trainer): value for trainer, value in given}
        else:
            wanted = math.fsum(float(value) for _, value in given)
            assert found[name] == pytest.approx(wanted / (len(given) if name == "mean" else 1), rel=1e-12, abs=1e5)
    if all(isinstance(values.get("sum", 0), int) for _, values, _ in gradients):
        assert found.get("sum", 0) == sum(values.get("sum", 0) for _, values, _ in gradients)


@pytest.mark.parametrize(
    ("dtype", "summed", "mean"),
    [
        (torch.uint8, torch.int64, torch.float64),
        (torch.bool, torch.int64, torch.float64),
        (torch.float16, torch.float32, torch.float32),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float8_e4m3fn, torch.float32, torch.float32),
        (torch.float32, torch.float32, torch.float32),
        (torch.float64, torch.float64, torch.float64),
        (torch.complex64, torch.complex64, torch.complex64),
    ],
)
def test_sums_of_tensors_keep_their_precision(dtype: torch.dtype, summed: torch.dtype, mean: torch.dtype) -> None:
    value = torch.tensor([1, 0, 1]).to(dtype)
    tally = Tally()
    for _ in range(2100):
        tally.add(ANNA, {"sum": Reported("sum", value), "mean": Reported("mean", value)})
    found = tally.values()
    assert (found["sum"].dtype, found["mean"].dtype) == (summed, mean)
    assert found["sum"].tolist() == [2100, 0, 2100] and found["mean"].tolist() == [1, 0, 1]
    assert value.tolist() == [1, 0, 1]


def test_a_tally_does_not_change_what_it_has_told() -> None:
    tally = Tally()
    tally.add(ANNA, {"sum": Reported("sum", torch.ones(2))})
    before = tally.values()["sum"]
    tally.add(ANNA, {"sum": Reported("sum", torch.ones(2))})
    assert before.tolist() == [1, 1]


def test_kept_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "MOST_KEPT", 4)
    tally = Tally()
    for number in range(10):
        tally.add(bytes([number]), {"host": Reported("keep", number)})
    assert list(tally.values()["host"].values()) == [6, 7, 8, 9]
    monkeypatch.setattr(tallies, "MOST_KEPT_BYTES", 3000)
    for number in range(3):
        tally.add(bytes([number]), {"host": Reported("keep", torch.zeros(300)), "one": Reported("keep", "x" * 5000)})
    found = tally.values()
    assert (len(found["host"]), len(found["one"])) == (1, 1)
    assert tally._kept_bytes == sum(tallies.size(each) for of in tally._kept.values() for each in of.values())


def test_trainers_of_one_name_are_told_apart() -> None:
    tally = Tally()
    for last in (b"1", b"2"):
        tally.add(ANNA[:15] + last, {"host": Reported("keep", last)})
    assert tally.values()["host"] == {title(ANNA): b"1", f"{title(ANNA)}~2": b"2"}


def test_a_report_counts_once_or_never() -> None:
    known = ReportedValues()
    values = {"n": Reported("sum", 1)}
    first, second = known.expect(ANNA, values), known.expect(BERT, values)
    assert known.count(1, [first, None]) == known.count(1, [second]) == {"n": 1}
    assert known.count(1, [first]) == {}
    known.drop(first)
    third = known.expect(ANNA, values)
    known.drop(third)
    assert known.count(1, [third]) == {}
    assert known.read(reset=False).values == {"n": 2}


def test_names_are_free_again_after_a_reset_unless_gradients_wait() -> None:
    known = ReportedValues()
    waiting, pooled, tally = (
        known.expect(ANNA, {"n": Reported("sum", 1)}),
        known.expect(BERT, {"m": Reported("sum", 1)}),
        Tally(),
    )
    known.pool(tally, pooled)
    known.count(1, [known.expect(ANNA, {"other": Reported("sum", 1)})])
    assert known.read(reset=True).values == {"other": 1}
    for name in ("n", "m"):
        with pytest.raises(InvalidArgumentError, match="reduced by 'sum'"):
            known.expect(ANNA, {name: Reported("mean", 1)})
    known.expect(ANNA, {"other": Reported("mean", 1)})
    known.drop(waiting)
    known.drop_pool(tally)
    known.read(reset=True)
    known.expect(ANNA, {"n": Reported("mean", 1), "m": Reported("mean", 1)})


def test_a_refused_report_leaves_nothing_behind() -> None:
    known = ReportedValues()
    known.drop(known.expect(ANNA, {"a": Reported("sum", 1)}))
    with pytest.raises(TooLargeError, match="more than 64"):
        known.expect(ANNA, {str(number): Reported("sum", 1) for number in range(64)})
    with pytest.raises(InvalidArgumentError):
        known.expect(ANNA, {"b": Reported("sum", 1), "a": Reported("keep", 1)})
    assert list(known._uses) == ["a"]
