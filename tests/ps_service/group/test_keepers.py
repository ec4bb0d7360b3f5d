"""Tests how the keepers of a directory are given."""

from __future__ import annotations

import pytest

from ps_service.group.keepers import KeeperAddress, keepers_of


def test_addresses_are_names_unless_these_are_given() -> None:
    assert keepers_of("a:1, b:2,first=c:3") == (
        KeeperAddress("a:1", "a:1"),
        KeeperAddress("b:2", "b:2"),
        KeeperAddress("first", "c:3"),
    )


@pytest.mark.parametrize("directory", ["", "self", "127.0.0.1:50051"])
def test_one_owner_may_keep_it(directory: str) -> None:
    assert keepers_of(directory) == ()


@pytest.mark.parametrize(
    "directory", ["a:1,b:1", "a:1,b:1,a:1", "a:1,b:1,", "a:1,b:1,=", "x=a:1,x=b:1,c:1", "a:1,x=a:1,c:1"]
)
def test_two_are_too_few_and_all_differ(directory: str) -> None:
    with pytest.raises(ValueError, match="is not one address, nor three or more different ones"):
        keepers_of(directory)
