"""How long calls wait on owners for other trainers."""

from __future__ import annotations

import pytest

from trainer_client.session.stepped import owner_seconds


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 0.0), (0.5, 0.475), (20.0, 19.0), (100.0, 99.0)])
def test_an_owner_gives_up_a_little_before_its_caller(timeout: float | None, seconds: float) -> None:
    assert owner_seconds(timeout) == pytest.approx(seconds)
