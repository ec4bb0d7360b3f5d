"""What the members of the group in these tests raise for each other."""

from __future__ import annotations

import builtins
from typing import Any

from ps_service import by_value, remote
from trainer_client import rpc


@by_value
class Registered(Exception):
    """An exception that all members have registered."""

    def __init__(self, flag: bool, text: str) -> None:
        super().__init__(text)
        self.flag = flag


@by_value
class Simple(LookupError):
    """A registered exception that can be made of its `args`."""


class Unregistered(Exception):
    """An exception that no member has registered."""


@remote
def raises_registered() -> None:
    raise Registered(True, "foo")


@remote
def raises_unregistered() -> None:
    raise Unregistered("foo")


@remote
def raises_builtin(name: str) -> None:
    raise getattr(builtins, name)("expected")


@remote
def same(value: Any) -> Any:
    return value


@remote
def calls_on(to: str, name: str) -> None:
    rpc.rpc_sync(to, raises_registered if name == "Registered" else raises_unregistered)
