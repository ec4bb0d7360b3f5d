"""Finds out from the arguments of `init_rpc` and the environment where the directory of a group is."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import urlsplit

from ps_wire.errors import InvalidArgumentError
from trainer_client.rpc.entry import Plan
from trainer_client.rpc.meeting_file import MeetingFile
from trainer_client.rpc.options import master_address
from trainer_client.rpc.process_group import store_at

SELF: Final = "self"
"""The `directory` of a process that keeps the directory itself."""


def planned(
    init_method: str, rank: int, world_size: int, directory: str, listen: str, seconds: float
) -> tuple[Plan, str]:
    """How this process joins its group, and the address to listen on; empty for any.

    The plan may hold the lock of a file, which the caller gives back.

    Args:
        init_method: Where rank 0 is, if there is no `directory`.
        rank: The rank; -1 for that of the environment, or none.
        world_size: Number of members; 0 for an open group.
        directory: Address of the directory, or `self`; empty for that of rank 0.
        listen: The address to listen on, if one was given.
        seconds: Seconds to wait for the others.

    Raises:
        InvalidArgumentError: The rank or the address of the directory is missing, or the arguments do not agree.
        UnavailableError: Rank 0 is to tell through a file, or through torch's process group at its address, where it
            listens, and does not in time.
    """
    if directory:
        if world_size:
            raise InvalidArgumentError(
                "give either world_size, for a group that begins as a whole, or directory, for an open group"
            )
        place = "" if directory == SELF else directory
        return Plan(place, rank if rank >= 0 else None, 0, seconds), listen
    rank = rank if rank >= 0 else _rank_of_environment(init_method)
    if world_size and not rank < world_size:
        raise InvalidArgumentError(f"rank {rank} is not one of {world_size}; give rank= beside world_size=")
    file = MeetingFile.of(init_method)
    if file is not None:
        plan = Plan("", rank, world_size, seconds, None, file)
        if plan.may_keep_directory:
            file.take(world_size)
        return plan, listen
    master = master_address(init_method)
    store = store_at(master)
    if rank == 0:
        return Plan("", 0, world_size, seconds, store), listen or (master if store is None else store.free_port)
    return Plan(master if store is None else store.told(seconds), rank, world_size, seconds), listen


def _rank_of_environment(init_method: str) -> int:
    scheme = urlsplit(init_method).scheme
    missing = "rank parameter missing"
    if scheme == "env":
        rank = os.environ.get("RANK", "")
        if rank.isdecimal():
            return int(rank)
        missing = "environment variable RANK expected, but not set"
    raise InvalidArgumentError(
        f"Error initializing torch.distributed using {scheme}:// rendezvous: {missing}: rank -1 is none; give "
        "init_rpc(rank=...). For an open group without ranks, one process gives directory='self', and the others "
        "directory='host:port'"
    )
