"""Waits until all members of a group have come to the same point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainer_client.rpc.current import agent
from trainer_client.rpc.options import UNSET
from trainer_client.rpc.rendezvous import Group


def barrier(names: Iterable[str] | None = None, timeout: float = UNSET) -> None:
    """Waits until all members have come here.

    Args:
        names: Whom to wait for, this process included; everybody who began together, if None.
        timeout: Seconds to wait; 0 for as long as it takes, -1 for the default of calls.

    Raises:
        DeadlineExceededError: Somebody did not come in time; it says who.
        InvalidArgumentError: This process is not among them, or the group is open and no names were given.
    """
    _group(names).rendezvous("barrier", agent().seconds(timeout) or 0.0)


def all_gather(value: Any, names: Iterable[str] | None = None, timeout: float = UNSET) -> dict[str, Any]:
    """Waits until all members have come here, and gives what each of them brought, by name.

    Args:
        value: What this process brings.
        names: Whom to wait for, as in `barrier`.
        timeout: Seconds to wait, as in `barrier`.

    Raises:
        As `barrier`.
    """
    return _group(names).rendezvous("all_gather", agent().seconds(timeout) or 0.0, value)


def _group(names: Iterable[str] | None) -> Group:
    group = agent().group
    if names is not None:
        return Group(agent(), names)
    if group is None:
        raise ValueError("the group is open: say whom to wait for")
    return group
