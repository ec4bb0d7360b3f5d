"""Tests of the options of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ps_wire.errors import InvalidArgumentError
from ps_wire.tables import options
from ps_wire.tables.options import (
    FTRL,
    SGD,
    Adagrad,
    Constant,
    LazyAdam,
    Normal,
    PartialRowWiseAdam,
    RowGroup,
    RowWiseAdagrad,
    Uniform,
    Zeros,
)

ALL = (
    *(Normal(0.5), Uniform(-1, 2), Zeros(), Constant(-3.0), RowGroup(-5, 9, lr=0.5)),
    *(
        SGD(0.1, 0.9, 0.01),
        Adagrad(0.1),
        RowWiseAdagrad(0.1),
        LazyAdam(betas=(0.5, 0.75)),
        PartialRowWiseAdam(),
        FTRL(l1=2),
    ),
)


@pytest.mark.parametrize("option", ALL, ids=lambda option: option.kind)
def test_an_option_is_the_same_after_a_way_as_plain_values(option: Any) -> None:
    plain = options.to_plain(option)
    assert not [value for value in plain.values() if not isinstance(value, str | int | float | list | None)]
    assert options.from_plain(plain) == option


@pytest.mark.parametrize(
    "make",
    [
        lambda: Normal(-1.0),
        lambda: Normal(float("nan")),
        lambda: Uniform(1.0, 0.0),
        lambda: Constant(float("inf")),
        lambda: SGD(lr=-0.1),
        lambda: SGD(momentum=1.0),
        lambda: SGD(lr=True),
        lambda: Adagrad(eps=-1),
        lambda: RowWiseAdagrad(initial_accumulator=-1),
        lambda: LazyAdam(betas=(0.9, 1.0)),
        lambda: LazyAdam(betas=(0.9,)),  # type: ignore[arg-type]
        lambda: PartialRowWiseAdam(weight_decay="much"),  # type: ignore[arg-type]
        lambda: LazyAdam(eps=0),
        lambda: PartialRowWiseAdam(eps=0.0),
        lambda: Adagrad(eps=0),
        lambda: RowWiseAdagrad(eps=0),
        lambda: FTRL(lr=0),
        lambda: FTRL(l1=-1),
        lambda: RowGroup(3, 2),
        lambda: RowGroup(0, 2**63),
        lambda: RowGroup(0, 1, lr=-1),
    ],
)
def test_values_that_do_not_fit_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


@pytest.mark.parametrize(
    "values",
    [
        *(None, [], {}, {"kind": 3}, {"kind": "adam"}, {"kind": "sgd", "nesterov": True}, {"kind": "constant"}),
        *({"kind": "sgd", "lr": [1, 2]}, {"kind": "normal", "std": "1"}, {"kind": "lazy_adam", "betas": 3}),
    ],
)
def test_plain_values_that_describe_no_option_are_refused(values: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        options.from_plain(values)


def test_options_of_groups_are_checked_as_those_of_the_optimizer() -> None:
    options.check_groups(FTRL(), [RowGroup(0, 5, lr=0.5), RowGroup(6, 7)])
    options.check_groups(SGD(), [RowGroup(0, 5, lr=0.0, weight_decay=0.5)])
    with pytest.raises(InvalidArgumentError, match=r"RowGroup\(low=0.*does not fit FTRL: the learning rate.*not 0"):
        options.check_groups(FTRL(), [RowGroup(0, 5, lr=0.0)])
    with pytest.raises(InvalidArgumentError, match=r"weight_decay=, which FTRL has not; it has beta, l1, l2, lr"):
        options.check_groups(FTRL(), [RowGroup(0, 5, weight_decay=0.9)])


def test_whole_numbers_and_floats_of_equal_value_are_the_same_option() -> None:
    plain = options.to_plain(LazyAdam(lr=1, betas=(0, 0.5)))
    assert plain["lr"] == 1.0 and [type(each) for each in (plain["lr"], *plain["betas"])] == [float] * 3
    assert type(options.to_plain(RowGroup(1, 2, lr=1))["low"]) is int
    assert options.to_plain(RowGroup(1, 2))["lr"] is None


def test_without_eps_a_sum_that_begins_above_zero_keeps_rows_finite() -> None:
    assert Adagrad(eps=0.0, initial_accumulator=0.1).eps == RowWiseAdagrad(eps=0, initial_accumulator=0.1).eps == 0
