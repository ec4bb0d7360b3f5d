"""Namespaces: each has names of its own, and an access list says who may do what in it.

The registry of an owner has the name of an object with its namespace before it, as `ads::net`, unless that is the
default one. So do checkpoints, the log and the status.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from google.protobuf.message import Message

DEFAULT: Final = "default"
SEPARATOR: Final = "::"

_NAME: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)

_NAMING: Final = frozenset(("attach", "create", "delete", "join_communicator", "optimizer", "scheduler"))
"""The operations whose request has the `name` of an object, or of a communicator."""


def checked(namespace: str) -> str:
    """A namespace as it is kept: empty for the default one. Raises `InvalidArgumentError` if it is none."""
    if namespace and not _NAME.fullmatch(namespace):
        raise InvalidArgumentError(f"{namespace[:80]!r} is no namespace: 1 to 64 letters, digits, '_', '.' and '-' are")
    return "" if namespace == DEFAULT else namespace


def of(name: str) -> str:
    """The namespace of an object with this name in the registry; empty for the default one."""
    return name.partition(SEPARATOR)[0] if SEPARATOR in name else ""


def within(name: str) -> str:
    """The name of an object in its namespace."""
    return name.partition(SEPARATOR)[2] if SEPARATOR in name else name


def enter(namespace: str, may_leave: bool, operation: str, request: Any) -> None:
    """Gives the name in a request its namespace. One that has it already is only for those that may leave their own.
    Raises `InvalidArgumentError` for others."""
    if operation not in _NAMING or not (name := request.name):
        return
    if SEPARATOR not in name:
        if namespace:
            request.name = f"{namespace}{SEPARATOR}{name}"
    elif namespace or not may_leave:
        raise _of_another(name)


def full_name(namespace: str, may_leave: bool, name: str) -> str:
    """A name with its namespace, for the registry, as `enter` makes it; one that has this namespace stays. Raises as
    that."""
    if SEPARATOR not in name:
        return f"{namespace}{SEPARATOR}{name}" if namespace else name
    if of(name) != namespace and (namespace or not may_leave):
        raise _of_another(name)
    return name


def _of_another(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{name!r} names another namespace: connect with namespace={of(name)!r}, and say {within(name)!r}"
    )


def names_context(request: Message) -> bool:
    """Whether a request is for a pass."""
    return "context" in request.DESCRIPTOR.fields_by_name and request.HasField("context")
