"""The objects that have moved to other owners, and the names that are kept for those that come."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ps_wire.errors import InvalidArgumentError, ObjectMovedError
from ps_wire.runtime.noop import noop

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST: Final = 4096
"""The most objects of which is remembered where they went."""


class Place(NamedTuple):
    """Where an object is, and the move that has taken it there; that is empty if the object has not left."""

    owner: str
    move: str
    name: str = ""


class MovedObjects:
    """Where objects are that are not here: those that have left, by id and by name, and the names that are reserved for
    those that come. Used under the lock of the registry."""

    def __init__(self, here: str) -> None:
        self._here = here
        self.by_id: OrderedDict[str, Place] = OrderedDict()
        self.by_name: dict[str, Place] = {}

    def check_id(self, object_id: str) -> None:
        """Raises `ObjectMovedError` if the object with that id has left."""
        if (place := self.by_id.get(object_id)) is not None:
            raise self._error(place, object_id)

    def check_name(self, name: str) -> None:
        """Raises `ObjectMovedError` if the object of that name has left, or has not come yet."""
        if (place := self.by_name.get(name)) is not None:
            raise self._error(place, "")

    def left(self, object_id: str, name: str, owner: str, move: str) -> None:
        """An object has left."""
        self.by_id[object_id] = self.by_name[name] = Place(owner, move, name)
        if len(self.by_id) > _MOST:
            _, place = self.by_id.popitem(last=False)
            if self.by_name.get(place.name) is place:
                del self.by_name[place.name]

    def reserve(self, name: str, owner: str) -> None:
        """An object of another owner may come. One that has left by this name before is still found there."""
        self.by_name[name] = Place(owner, "", name)

    def unreserve(self, name: str) -> None:
        """It does not come."""
        if (place := self.by_name.get(name)) is not None and not place.move:
            del self.by_name[name]
            earlier = [each for each in self.by_id.values() if each.name == name]
            if earlier:
                self.by_name[name] = earlier[-1]

    def forget(self, object_id: str, name: str) -> None:
        """The object is here."""
        self.by_id.pop(object_id, None)
        self.by_name.pop(name, None)

    def _error(self, place: Place, object_id: str) -> ObjectMovedError:
        text = f"{place.name!r} has moved from owner {self._here!r} to {place.owner!r}"
        return ObjectMovedError(text, place.owner, place.move, object_id)


class Held(Protocol):
    """Objects that are about to leave, or that have come and are still another owner's."""

    def check(self, request: Any, object_id: str) -> None:
        """Raises `ObjectMovedError` if a request must not use one of them."""


class Arrival(NamedTuple):
    """Objects of another owner that a move has brought: by id, their names. They are whole if it `is_whole`. `runs` are
    `RunRecord` messages: what optimizers have applied there of passes that may be run again."""

    move: str
    owner: str
    objects: dict[str, str]
    is_whole: bool
    runs: tuple[Any, ...] = ()

    def check(self, request: Any, object_id: str) -> None:
        """As `Held.check`."""
        name = self.objects[object_id]
        raise ObjectMovedError(f"{name!r} has not come from owner {self.owner!r} yet", self.owner, "", object_id)


class Moves:
    """The moves of an owner. `held` has, by id, the objects that requests must not use; `arrivals` those that have
    come, by move; `accepted` the ids of those that were this owner's at last. `serve` answers the requests of a program
    that moves objects, and `sweep` frees what was brought for moves that do not go on: functions that an owner sets
    once it has a log."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.held: dict[str, Held] = {}
        self.arrivals: dict[str, Arrival] = {}
        self.accepted: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self.serve: Callable[[Any, Any, Any], None] = self._refuse
        self.sweep: Callable[[], None] = noop

    def _refuse(self, ctx: Any, request: Any, reply: Any) -> None:
        raise InvalidArgumentError(
            f"owner {self._owner!r} has no log, without which a move could not outlive its end: objects move between "
            "owners that were started with --data-dir and --durability interval:1, or always"
        )
