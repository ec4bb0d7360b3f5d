"""Tests that of several restores of a table the rows of one alone stay."""

from __future__ import annotations

from typing import Any

import pytest

from ps_service.tables.hosted_table import Restores
from ps_wire.errors import InvalidArgumentError


def test_the_restore_that_has_begun_last_goes_on() -> None:
    cleared: list[int] = []
    restores = Restores("table 'items'", lambda: 7)
    first = restores.begin(0, lambda: cleared.append(1))
    with restores.going_on(first):
        pass
    second = restores.begin(0, lambda: cleared.append(2))
    assert (first, second, cleared) == (7, 8, [1, 2])
    with (
        pytest.raises(InvalidArgumentError, match="another restore of table 'items' has begun"),
        restores.going_on(first),
    ):
        raise AssertionError
    with restores.going_on(second):
        pass
    with pytest.raises(InvalidArgumentError, match="another restore"):
        restores.begin(first, lambda: cleared.append(3))
    assert cleared == [1, 2], "one that comes late removes nothing"


def test_a_restore_goes_on_after_its_owner_has_started_again() -> None:
    restores = Restores("table 'items'")
    with restores.going_on(8):
        pass
    with pytest.raises(InvalidArgumentError), restores.going_on(7):
        pass
    assert restores.begin(0, lambda: None) > 1_700_000_000_000_000, "larger than those before, in microseconds"


@pytest.mark.parametrize("number", [-1, None, True, "1", 2.0])
def test_what_is_no_number_is_refused(number: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        Restores("table 'items'").begin(number, lambda: None)
