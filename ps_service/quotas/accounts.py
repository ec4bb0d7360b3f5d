"""What the objects, sessions and passes of an owner count for."""

from __future__ import annotations

from typing import Final, NamedTuple


class Account(NamedTuple):
    """Who uses something: an identity, empty where nobody is asked who it is; and its namespace, empty for the default
    one."""

    identity: str = ""
    namespace: str = ""


NOBODY: Final = Account()
