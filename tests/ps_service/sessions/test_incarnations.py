"""Tests that an owner knows its own incarnation, and those whose state it has restored."""

from __future__ import annotations

from ps_service.sessions.sessions import Incarnations


def test_every_start_has_an_id_of_its_own() -> None:
    one, other = Incarnations(), Incarnations()
    assert one.current != other.current
    assert one.current in one
    assert other.current not in one
    assert one.earlier == ()


def test_sessions_of_starts_whose_state_was_restored_stay_valid() -> None:
    incarnations = Incarnations()
    incarnations.earlier = ("second", "first")
    assert incarnations.earlier == ("second", "first")
    assert all(each in incarnations for each in ("first", "second", incarnations.current))
    assert "third" not in incarnations
    assert "" not in incarnations, "a trainer that comes for the first time names none"
