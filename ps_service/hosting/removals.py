"""Why named objects are gone, so that the error for their handles says what to do."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ps_service.hosting.objects import HostedObject
    from ps_wire.refs import Ref

_MOST: Final = 1024
"""The most removals that are remembered."""


class Removal(NamedTuple):
    """How a named object went.

    Attributes:
        name: Its name.
        call: The call of a client that makes such an object.
        how: What happened to it, or to the object that it was removed with.
        root: The name of the object that it was removed with; its own if it was removed by itself.
        root_call: The call of a client that makes that.
        is_replaced: Whether there is another object of the name `root` now.
    """

    name: str
    call: str
    how: str
    root: str
    root_call: str
    is_replaced: bool

    def told(self) -> str:
        """What happened, and what to do."""
        if self.root == self.name:
            if not self.is_replaced:
                return f"{self.name!r} {self.how}. Make it again with {self.call}"
            attach = f" or ps.attach({self.name!r})" if self.call in _ATTACHED else ""
            return f"{self.name!r} {self.how}. Get a handle to the new one with {self.call}{attach}"
        again = f"Get a handle to that with {self.root_call}" if self.is_replaced else f"Make it with {self.root_call}"
        return f"{self.name!r} was removed with {self.root!r}, which {self.how}. {again}, and this with {self.call}"


_ATTACHED: Final = ("ps.module(…)", "ps.create(…)")
"""Calls that make what `attach` gives the same handle to."""


class Removals:
    """The last removals of named objects, by id. Used under the lock of the registry."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Removal] = OrderedDict()

    def note(self, removed: HostedObject, root: HostedObject, is_replaced: bool) -> None:
        """An object was removed by itself, or with `root`."""
        if not removed.name:
            return
        how = "was replaced, because a trainer asked with replace=True" if is_replaced else "was deleted"
        call = removed.made_with
        self._known[removed.ref.object_id] = Removal(
            removed.name, call, how, root.name or removed.name, root.made_with, is_replaced
        )
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def told(self, ref: Ref) -> str:
        """Why the object of a handle is not there, and what to do."""
        known = self._known.get(ref.object_id)
        if known is not None:
            return f"the object of {ref} is gone: {known.told()}"
        return (
            f"the object of {ref} is gone: its last handle was dropped, the session of its trainer was lost, or the "
            "owner has started without it. Ask for it again as at the beginning: ps.module(…, name=…) attaches to what "
            "is there and makes what is not"
        )
