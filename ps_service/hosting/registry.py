"""The objects of an owner, their names, and the references of sessions to them."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from ps_service.access import namespaces
from ps_service.hosting.moved_objects import MovedObjects
from ps_service.quotas.accounts import NOBODY
from ps_wire.close_names import hint
from ps_wire.errors import (
    ForeignHandleError,
    InvalidArgumentError,
    NameConflictError,
    StaleHandleError,
    UnknownNameError,
)
from ps_wire.runtime.scopes import waiting

if TYPE_CHECKING:
    from ps_service.hosting.fingerprints import Fingerprint
    from ps_service.hosting.objects import HostedObject
    from ps_service.quotas.accounts import Account
    from ps_wire.refs import Ref


_MOST_REMOVALS: Final = 1024
"""The most removals that are remembered."""

_GONE: Final = (
    "its last handle was dropped, the session of its trainer was lost, or the owner has started without it. Ask for it "
    "again as at the beginning: ps.module(…, name=…) attaches to what is there and makes what is not"
)
"""Why an object without a name may be gone, and what to do."""

_BY_NAME: Final = ("ps.optimizer(…)", "ps.scheduler(…)")
"""Calls that make objects, or give what is there for its name alone."""

_ATTACHED: Final = ("ps.module(…)", "ps.create(…)")
"""Calls that make what `attach` gives the same handle to."""


class _Census(Protocol):
    """Counts the objects of a registry as they are added and removed, under the lock of that, and checks those that
    trainers ask for."""

    def check(self, account: Account, made: HostedObject | None = None, instead_of: HostedObject | None = None) -> None:
        """Raises `QuotaError` if there may be no further object of an account, or not this one."""

    def add(self, hosted: HostedObject) -> None: ...

    def remove(self, hosted: HostedObject) -> None: ...


class Registry:
    """Finds objects by handle or name, and frees anonymous ones with their last reference. Safe in all threads."""

    def __init__(self, owner: str, object_counts: _Census) -> None:
        self.owner = owner
        # Raises if the sender of the request that runs may not use an object.
        self.guard: Callable[[HostedObject], None] | None = None
        self._census = object_counts
        self._lock = threading.RLock()
        self._objects: dict[str, HostedObject] = {}
        self._names: dict[str, HostedObject] = {}
        # By name: a future that is done when the object has been made, or could not be made.
        self._making: dict[str, Future[None]] = {}
        self._holders: dict[bytes, Counter[str]] = {}
        # Of the last named objects that were removed, by id, what happened to them.
        self._removals: OrderedDict[str, str] = OrderedDict()
        self.moved: Final = MovedObjects(owner)
        # The threads that make objects again which have a place elsewhere.
        self._restoring: set[int] = set()

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def references(self) -> int:
        """Number of references that sessions hold, including those in answers that are not confirmed."""
        with self._lock:
            return sum(held.total() for held in self._holders.values())

    def held_by(self, trainer: bytes) -> dict[str, int]:
        """The number of references of a session to each object, by id."""
        with self._lock:
            return {object_id: count for object_id, count in self._holders.get(trainer, {}).items() if count > 0}

    def get(self, object_id: str) -> HostedObject | None:
        """The object with that id, if it is there."""
        return self._objects.get(object_id)

    def objects(self) -> list[HostedObject]:
        with self._lock:
            return list(self._objects.values())

    def get_or_make(
        self,
        name: str,
        fingerprint: Fingerprint,
        make: Callable[[], HostedObject],
        remedy: str = "",
        replace: bool = False,
        account: Account = NOBODY,
    ) -> tuple[HostedObject, bool]:
        """The object of that name, and whether it was made now, which it is if there is none. An anonymous object is
        always made. Concurrent requests for a name wait for one of them and get the same object.

        A new one counts for an `account`; if that may have no further one, it is a `QuotaError`.

        An object that was made with another class or other arguments is a `NameConflictError`. With `replace` it is
        removed, with its dependents, once this one is made; it stays if `make` raises. The `remedy` says what else a
        trainer can do that asked with other arguments, and ends with a comma.
        """
        if not name:
            return self._add_checked(make, account), True
        known = self._begin(name, fingerprint if replace else None)
        if known is None:
            try:
                return self._add_checked(make, account, self._names.get(name)), True
            finally:
                with self._lock:
                    made = self._making.pop(name)
                made.set_result(None)
        if known.fingerprint.digest != fingerprint.digest:
            raise NameConflictError(
                f"{name!r} exists already: it is a {known.class_name}, {known.fingerprint.difference(fingerprint)}. "
                f"Ask with the same arguments, {remedy}use it as it is with {_attaching(known)}, give yours another "
                "name with name=, or put yours in its place for all trainers with replace=True"
            )
        return known, False

    def _add_checked(
        self, make: Callable[[], HostedObject], account: Account, before: HostedObject | None = None
    ) -> HostedObject:
        """Makes an object, and adds it in the place of one that was there before, if it is in the quota of its
        account."""
        is_checked = threading.get_ident() not in self._restoring
        if is_checked:
            self._census.check(account, instead_of=before)
        new = make()
        new.account = account
        with self._lock:
            before = self._names.get(new.name) if new.name else None
            if is_checked:
                self._census.check(account, new, before)
            if before is not None:
                self._remove(before, before, is_replaced=True)
            return self.add(new)

    def check_room(self, made: HostedObject) -> None:
        """Raises `QuotaError` if the account of a new object may not have it."""
        with self._lock:
            self._census.check(made.account, made)

    def being_made(self, name: str) -> Future[None] | None:
        """A future that is done when the object of that name was made or could not be; None if it is not being made."""
        with self._lock:
            return self._making.get(name)

    def _begin(self, name: str, instead: Fingerprint | None) -> HostedObject | None:
        """The object of that name; None if the caller has to make it, also `instead` of one that was made from other
        arguments. Waits while another thread makes it."""
        while True:
            with self._lock:
                known = self._names.get(name)
                if known is None and threading.get_ident() not in self._restoring:
                    self.moved.check_name(name)
                made = self._making.get(name)
                if made is None:
                    if known is not None and instead is not None and known.fingerprint.digest != instead.digest:
                        known = None
                    if known is None:
                        self._making[name] = Future()
                    return known
            with waiting:
                made.result()

    def add(self, made: HostedObject) -> HostedObject:
        with self._lock:
            self._shelve(made)
            if made.name and made.name not in self.moved.by_name:
                self._names[made.name] = made
        return made

    def check_new(self, object_id: str) -> None:
        """Raises `InvalidArgumentError` if an object has the id that a caller has chosen."""
        if object_id in self._objects:
            raise InvalidArgumentError(f"the id {object_id} is in use; choose 128 random bits for each result")

    def restore(self, held: HostedObject) -> None:
        """Adds an anonymous object again that had no references left, because code on this owner refers to it."""
        with self._lock:
            if not held.name:
                self._shelve(held)

    def bind(self, dependent: HostedObject, to: Iterable[HostedObject]) -> None:
        """Makes an object depend on others: it is removed with any of them."""
        with self._lock:
            for each in to:
                each.dependents.add(dependent)

    def named(self, name: str) -> HostedObject:
        """The object of that name. Raises `UnknownNameError` if there is none."""
        try:
            return self._names[name]
        except KeyError:
            self.moved.check_name(name)
            # `status` lists the names of its namespace to any trainer, so none is given away here.
            close = hint(name, [each for each in list(self._names) if namespaces.of(each) == namespaces.of(name)])
            raise UnknownNameError(f"owner {self.owner!r} hosts nothing under the name {name!r}{close}") from None

    def under(self, name: str) -> HostedObject | None:
        """The object of that name, if there is one, for code of the owner itself."""
        return self._names.get(name)

    def find(self, ref: Ref) -> HostedObject:
        """The object that a handle in a request refers to. Raises as `look_up`, and `PermissionDeniedError` if it
        belongs to another identity than the sender."""
        # What `look_up` finds for most handles, without the cost of a call.
        found = self._objects.get(ref.object_id)
        if found is None or ref.owner != self.owner or ref.parameter:
            found = self.look_up(ref)
        if self.guard is not None:
            self.guard(found)
        return found

    def holds(self, trainer: bytes, object_id: str) -> bool:
        """Whether a trainer has a reference to an object."""
        return self._holders.get(trainer, Counter())[object_id] > 0

    def look_up(self, ref: Ref) -> HostedObject:
        """The object that a handle refers to. Raises `ForeignHandleError` if it belongs to another owner,
        `StaleHandleError` if the object no longer exists, and `UnknownNameError` if that has no such parameter."""
        if ref.owner != self.owner:
            raise ForeignHandleError(f"the handle {ref} belongs to owner {ref.owner!r}; this is {self.owner!r}")
        found = self._objects.get(ref.object_id)
        if found is None:
            with self._lock:
                self.moved.check_id(ref.object_id)
                raise StaleHandleError(f"the object of {ref} is gone: {self._removals.get(ref.object_id, _GONE)}")
        if ref.parameter:
            found.parameter(ref.parameter)
        return found

    def grant(self, trainer: bytes, held: HostedObject, count: int = 1) -> None:
        """Adds one or several references of a trainer."""
        with self._lock:
            self.restore(held)
            held.references += count
            self._holders.setdefault(trainer, Counter())[held.ref.object_id] += count

    def revoke(self, trainer: bytes, object_ids: Iterable[str]) -> None:
        """Removes references of a trainer; ids that it has no reference to are ignored."""
        with self._lock:
            held = self._holders.get(trainer, Counter())
            for object_id in object_ids:
                if held[object_id] > 0:
                    held[object_id] -= 1
                    self._drop(object_id, 1)
                if not held[object_id]:
                    del held[object_id]
            if not held:
                self._holders.pop(trainer, None)

    def forget(self, trainer: bytes) -> None:
        """Removes all references of a trainer whose session has ended."""
        with self._lock:
            for object_id, count in self._holders.pop(trainer, Counter()).items():
                self._drop(object_id, count)

    def delete(self, name: str) -> HostedObject:
        """Removes a named object and its dependents, whatever references there are. Raises as `named`."""
        with self._lock:
            found = self.named(name)
            self._remove(found, found)
            return found

    def withdraw(self, hosted: HostedObject) -> None:
        """Removes an object that exists only as a dependency of others, unless a session has a reference to it."""
        with self._lock:
            if hosted.references <= 0:
                self._take_down(hosted)

    # Objects that move

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """A block in which this thread makes objects that have a place elsewhere: they are found by their ids alone."""
        self._restoring.add(threading.get_ident())
        try:
            yield
        finally:
            self._restoring.discard(threading.get_ident())

    def reserve(self, object_id: str, name: str, owner: str) -> None:
        """Keeps a name for an object of another owner that may come here: who asks for it is sent there.
        `NameConflictError` if another object has it."""
        with self._lock:
            known = self._names.get(name)
            if name in self._making or (known is not None and known.ref.object_id != object_id):
                raise NameConflictError(f"owner {self.owner!r} has another object with the name {name!r}")
            if known is not None:
                del self._names[name]
            self.moved.reserve(name, owner)

    def show(self, object_id: str, name: str) -> None:
        """An object that was made under a reserved name is this owner's from now on."""
        with self._lock:
            self.moved.forget(object_id, name)
            if (hosted := self._objects.get(object_id)) is not None:
                self._names[name] = hosted

    def drop(self, object_id: str, name: str) -> None:
        """Removes such an object, or what was reserved for it."""
        with self._lock:
            self.moved.unreserve(name)
            if (hosted := self._objects.get(object_id)) is not None:
                self._take_down(hosted)

    def leave(self, object_id: str, name: str, owner: str, move: str) -> None:
        """Removes an object that is another owner's from now on: who asks for it is sent there."""
        with self._lock:
            self.lose(object_id)
            self.moved.left(object_id, name, owner, move)

    def lose(self, object_id: str) -> None:
        """Removes an object with all references to it, as if the owner had never had it."""
        with self._lock:
            hosted = self._objects.get(object_id)
            if hosted is not None:
                self._take_down(hosted)
                if self._names.get(hosted.name) is hosted:
                    del self._names[hosted.name]
            for held in self._holders.values():
                held.pop(object_id, None)

    def _shelve(self, hosted: HostedObject) -> None:
        if hosted.ref.object_id not in self._objects:
            self._objects[hosted.ref.object_id] = hosted
            self._census.add(hosted)

    def _take_down(self, hosted: HostedObject) -> bool:
        """Frees an object; false if it was gone already."""
        if self._objects.pop(hosted.ref.object_id, None) is None:
            return False
        self._census.remove(hosted)
        if hosted.when_removed is not None:
            hosted.when_removed()
        return True

    def _drop(self, object_id: str, count: int) -> None:
        found = self._objects.get(object_id)
        if found is not None:
            found.references -= count
            if found.references <= 0 and not found.name:
                self._take_down(found)

    def _remove(self, found: HostedObject, root: HostedObject, is_replaced: bool = False) -> None:
        if self._take_down(found) and found.name:
            self._removals[found.ref.object_id] = _removal(found, root, is_replaced)
            if len(self._removals) > _MOST_REMOVALS:
                self._removals.popitem(last=False)
        if self._names.get(found.name) is found:
            del self._names[found.name]
        for dependent in list(found.dependents):
            self._remove(dependent, root, is_replaced)


def _attaching(hosted: HostedObject) -> str:
    """The call of a client that gives what is there, as it is."""
    if hosted.made_with in _BY_NAME:
        return hosted.made_with.replace("…", f"name={hosted.name!r}")
    return f"attach({hosted.name!r})"


def _removal(removed: HostedObject, root: HostedObject, is_replaced: bool) -> str:
    """What happened to a named object that was removed with `root`, or by itself, and what to do. If the root
    `is_replaced`, there is another object of its name now."""
    call, name = removed.made_with, removed.name
    how = "was replaced, because a trainer asked with replace=True" if is_replaced else "was deleted"
    if root.name in ("", name):
        if not is_replaced:
            return f"{name!r} {how}. Make it again with {call}"
        attach = f" or ps.attach({name!r})" if call in _ATTACHED else ""
        return f"{name!r} {how}. Get a handle to the new one with {call}{attach}"
    again = f"Get a handle to that with {root.made_with}" if is_replaced else f"Make it with {root.made_with}"
    return f"{name!r} was removed with {root.name!r}, which {how}. {again}, and this with {call}"
