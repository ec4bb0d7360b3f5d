"""Tests that hosted code reaches other owners once its owner has joined a group."""

from __future__ import annotations

from ps_service.group.peers import Membership, Peers


def test_an_owner_is_alone_until_it_joins_a_group() -> None:
    membership, others = Membership(), Peers()
    assert type(membership.peers) is Peers and membership.peers is not others
    membership.join(others)
    assert membership.peers is others
