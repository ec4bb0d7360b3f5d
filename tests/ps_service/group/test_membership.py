"""Tests that hosted code reaches other owners once its owner has joined a group."""

from __future__ import annotations

from ps_service.group.peers import Alone, Membership


def test_an_owner_is_alone_until_it_joins_a_group() -> None:
    membership, others = Membership(), Alone()
    assert isinstance(membership.peers, Alone)
    membership.join(others)
    assert membership.peers is others
