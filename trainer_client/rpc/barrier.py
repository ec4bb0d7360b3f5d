"""Lets members of a group wait for each other and exchange values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ps_wire.errors import InvalidArgumentError
from trainer_client.rpc.current import agent
from trainer_client.rpc.options import UNSET
from trainer_client.rpc.rendezvous import Group, group_of


def barrier(names: Iterable[str] | None = None, timeout: float = UNSET) -> None:
    """Waits until all members have called it.

    Args:
        names: Names of the members to wait for, this one included; None for all members that began together.
        timeout: Seconds to wait; 0 for no limit, -1 for the default timeout of calls.

    Raises:
        DeadlineExceededError: A member did not arrive in time; the message names the missing ones.
        UnavailableError: A member was lost or has left since this one joined.
        InvalidArgumentError: This process is not among `names`, or the group is open and no names were given.
    """
    _group(names).rendezvous("barrier", agent().seconds(timeout) or 0.0)


def all_gather(value: Any, names: Iterable[str] | None = None, timeout: float = UNSET) -> dict[str, Any]:
    """Waits until all members have called it, and returns the values of all of them, by name.

    Args:
        value: The value of this process: any value that can be sent.
        names: Names of the members to wait for, as in `barrier`.
        timeout: Seconds to wait, as in `barrier`.

    Raises:
        DeadlineExceededError, UnavailableError, InvalidArgumentError: As in `barrier`.
    """
    return _group(names).rendezvous("all_gather", agent().seconds(timeout) or 0.0, value)


def _group(names: Iterable[str] | None) -> Group:
    group = group_of(agent(), names)
    if group is None:
        raise InvalidArgumentError("the group is open: give the names of the members to wait for")
    return group
