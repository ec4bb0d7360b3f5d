"""Finds out from the arguments of `init_rpc`, and what is around it, where the directory of a group is."""

from __future__ import annotations

import fcntl
import json
import os
import weakref
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import torch.distributed as dist

from ps_wire.errors import MIXED_GROUPS, InvalidArgumentError, PsError, UnavailableError
from ps_wire.regular_files import NotRegularError, open_regular
from ps_wire.runtime import forks
from ps_wire.shown import shown
from trainer_client.rpc.options import master_address

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from ps_service.group.keepers import KeeperAddress
    from ps_service.group.static_members import StaticMembers

SELF: Final = "self"
"""The `directory` of a process that keeps the directory itself."""

_begun: Final[weakref.WeakKeyDictionary[Store, int]] = weakref.WeakKeyDictionary()
"""How many groups have begun beside each process group. All members count the same."""


class Plan(NamedTuple):
    """How a process joins a group: with a `rank`, or None for a free number; `size` is 0 for an open group. `directory`
    is the address of the owner that keeps the directory; empty for this process. It tells the others where that is
    through a `store`, or a `file`; None if they know. It waits so many `seconds` for the directory and for the other
    members. An `is_owner` serves trainers, and is no program that joins by itself. Owners whose directory has several
    `keepers` know the addresses of all of them; others are `told` the members by whoever started them."""

    directory: str = ""
    rank: int | None = None
    size: int = 0
    seconds: float = 60.0
    store: GroupStore | None = None
    file: MeetingFile | None = None
    is_owner: bool = False
    keepers: tuple[KeeperAddress, ...] = ()
    told: StaticMembers | None = None

    @property
    def keeps_directory(self) -> bool:
        """Whether this process keeps the directory."""
        return not self.directory and (self.file is None or self.file.taken)

    @property
    def may_keep_directory(self) -> bool:
        """Whether this process keeps the directory if no other does. In a file's open group, that is the first."""
        return self.rank == 0 or not self.size


def planned(
    init_method: str, rank: int, world_size: int, directory: str, listen: str, seconds: float
) -> tuple[Plan, str]:
    """How this process joins its group, and the address to listen on; empty for any. Arguments as for `init_rpc`. The
    plan may hold the lock of a file, which the caller gives back. Raises `InvalidArgumentError` if the rank or the
    address of the directory is missing, or the arguments do not agree; and `UnavailableError` if rank 0 is to tell
    through a file, or through torch's process group at its address, where it listens, and does not in time."""
    if directory:
        if not isinstance(directory, str):
            raise InvalidArgumentError(f"directory is one address, host:port, or 'self', and not {shown(directory)}")
        if world_size:
            raise InvalidArgumentError(
                "give either world_size, for a group that begins as a whole, or directory, for an open group"
            )
        if "," in directory:
            raise InvalidArgumentError(
                f"{directory!r} is not one address: programs join groups whose directory one owner keeps. As trainers, "
                "with connect(directory=[...]), they can use any"
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
        # Beside the process group, which listens at that port, a free one of the same host.
        here = master if store is None else f"{master.rpartition(':')[0]}:0"
        return Plan("", 0, world_size, seconds, store), listen or here
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


class GroupStore:
    """The store of the default process group, through which rank 0 tells the others where it listens. A program may
    give the same `MASTER_ADDR` and `MASTER_PORT` to `init_process_group` and then to `init_rpc`."""

    def __init__(self, store: Store, address: str) -> None:
        self._store = store
        self._address = address
        _begun[store] = _begun.get(store, 0) + 1
        self._key = f"trainer_client.rpc/{_begun[store]}"

    def tell(self, address: str) -> None:
        """Tells the others where rank 0 listens."""
        self._store.set(self._key, address)

    def told(self, seconds: float) -> str:
        """Where rank 0 listens. Raises `UnavailableError` if it does not tell in time; 0 is no limit."""
        try:
            self._store.wait([self._key], timedelta(seconds=seconds or 86_400.0))
            return str(self._store.get(self._key), "utf-8")
        except dist.DistError as error:
            _begun[self._store] -= 1  # the next attempt waits for the same group
            raise UnavailableError(
                f"rank 0 did not tell within {seconds:g} s where it listens, through the store at {self._address}"
            ) from error


def store_at(address: str) -> GroupStore | None:
    """The store of the process group of this process, if it listens at an address."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    from torch._C._distributed_c10d import PrefixStore, TCPStore  # a torch without distributed has none

    whole = store = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore) or f"{store.host}:{store.port}" != address:
        return None
    return GroupStore(whole, address)


class Meeting(NamedTuple):
    """Where the directory is, with `world_size` 0 for an open group, and whether its process still runs (`there`)."""

    address: str
    world_size: int
    there: bool


class MeetingFile:
    """A file by which members find the directory, as with `init_method="file:///path"`. The process with the directory
    locks it as long as it runs. It has `.rpc` behind the path, which a process group of torch may use."""

    def __init__(self, path: str) -> None:
        self.path = Path(f"{path}.rpc")
        self._descriptor = -1

    @classmethod
    def of(cls, init_method: str) -> Self | None:
        """The file that an `init_method` names; None if it names none."""
        url = urlsplit(init_method)
        if url.scheme != "file":
            return None
        path = unquote(url.path)
        if url.netloc or not path.strip("/"):
            raise InvalidArgumentError(f"init_method {init_method!r} names no file; it is like file:///tmp/group")
        if not os.path.isdir(os.path.dirname(path)):
            raise InvalidArgumentError(f"init_method {init_method!r} names a file in a directory that does not exist")
        return cls(path)

    def take(self, world_size: int) -> None:
        """Takes the lock, unless another process has it, for a process that may keep the directory. Raises
        `UnavailableError` if the directory of this open group is gone, and `InvalidArgumentError` as `read`."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_current = os.path.samestat(os.fstat(descriptor), self.path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_current = False  # another process has it, or has removed it
        if not is_current:
            os.close(descriptor)
            return
        self._descriptor = descriptor
        forks.put_away_in_children(self)
        try:
            before = self.read(world_size)
            if before is not None and not world_size:
                raise UnavailableError(
                    f"the member that kept the directory of this open group, at {before.address}, has gone, and others "
                    f"may be left; remove {self.path} if it is of an earlier run"
                )
        except PsError:
            self.leave(over=False)
            raise

    @property
    def taken(self) -> bool:
        """Whether this process has the lock."""
        return self._descriptor >= 0

    def publish(self, address: str, world_size: int) -> None:
        """Writes where the directory is. The lock must have been taken."""
        text = json.dumps({"address": address, "world_size": world_size}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)

    def leave(self, over: bool) -> None:
        """Gives the lock back, if this process has it, and removes the file if the group is over."""
        if self.taken:
            if over:
                with suppress(OSError):
                    self.path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1

    def forked(self) -> None:
        """In a forked child: closes its copy of the file. Otherwise the lock would outlive the parent."""
        if self.taken:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, world_size: int) -> Meeting | None:
        """What stands there; None if there is nothing yet. Raises `InvalidArgumentError` if the group is open and this
        process has a `world_size`, or the other way round; or if something else than a file has the name."""
        try:
            with open_regular(self.path) as file:
                found = json.loads(file.read() or b"{}")
                meeting = Meeting(found["address"], found["world_size"], not _lockable(file.fileno()))
        except NotRegularError as error:
            raise InvalidArgumentError(str(error)) from None
        except (FileNotFoundError, ValueError, KeyError):
            return None
        if (meeting.world_size > 0) != (world_size > 0):
            raise InvalidArgumentError(
                f"{MIXED_GROUPS} The group in {self.path} was begun with world_size={meeting.world_size}, and this "
                f"process has {world_size}; remove the file if it is of an earlier run"
            )
        return meeting

    def __str__(self) -> str:
        return str(self.path)


def _lockable(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
