"""The owners that keep the directory of a group, where several do."""

from __future__ import annotations

from typing import NamedTuple


class KeeperAddress(NamedTuple):
    """The name of a keeper, which stays the same when it moves, and where it is at first."""

    name: str
    address: str


def keepers_of(directory: str) -> tuple[KeeperAddress, ...]:
    """The keepers in the setting `directory`: `ADDRESS` or `NAME=ADDRESS`, separated by commas. The name is the address
    if none is given. Empty if one owner keeps the directory. Raises `ValueError`."""
    if "," not in directory:
        return ()
    found = []
    for each in directory.split(","):
        name, _, address = each.strip().rpartition("=")
        found.append(KeeperAddress(name or address, address))
    distinct = [len(set(values)) for values in zip(*found, strict=True)]
    if len(found) < 3 or not all(map(all, found)) or distinct != [len(found)] * 2:
        raise ValueError(
            f"{directory!r} is not one address, nor three or more different ones: of two keepers none may fail"
        )
    return tuple(found)
