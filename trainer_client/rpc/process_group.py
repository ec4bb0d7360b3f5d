"""Begins a group at the address at which the store of torch's process group listens already."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

from ps_wire.errors import UnavailableError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_begun: Final[weakref.WeakKeyDictionary[Store, int]] = weakref.WeakKeyDictionary()
"""How many groups have begun beside each process group. All members count the same."""


class GroupStore:
    """The store of the default process group, through which rank 0 tells the others where it listens.

    A program may give the same `MASTER_ADDR` and `MASTER_PORT` to `init_process_group` and then to `init_rpc`.

    Args:
        store: The store.
        address: Where it listens.
    """

    def __init__(self, store: Store, address: str) -> None:
        self._store = store
        self._address = address
        _begun[store] = _begun.get(store, 0) + 1
        self._key = f"trainer_client.rpc/{_begun[store]}"

    @property
    def free_port(self) -> str:
        """An address to listen on: a free port of the same host."""
        return f"{self._address.rpartition(':')[0]}:0"

    def tell(self, address: str) -> None:
        """Tells the others where rank 0 listens."""
        self._store.set(self._key, address)

    def told(self, seconds: float) -> str:
        """Where rank 0 listens.

        Args:
            seconds: The longest time to wait for it; 0 is no limit.

        Raises:
            UnavailableError: It did not tell in time.
        """
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
