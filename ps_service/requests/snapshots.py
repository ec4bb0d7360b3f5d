"""Snapshots: objects as they were at one moment, which are read while training goes on."""

from __future__ import annotations

import copy
import re
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ps_service.access import namespaces
from ps_service.execution.in_time import in_time
from ps_service.hosting.fingerprints import NO_FINGERPRINT
from ps_service.hosting.objects import HostedObject
from ps_service.hosting.pinned import Pinned, SnapshotMark
from ps_service.hosting.pinned_module import PinnedModule
from ps_service.hosting.pinned_table import PinnedTable
from ps_service.passes.table_refs import PinnedTableRef, TableRef
from ps_service.requests import incidents
from ps_service.training.no_steps import StillBusy, no_steps
from ps_service.training.optimizers import HostedOptimizer
from ps_service.training.state_dicts import state_of
from ps_wire.errors import InvalidArgumentError, NameConflictError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from ps_service.engine import Engine
    from ps_service.quotas.accounts import Account
    from ps_service.requests.context import RequestContext
    from ps_service.tables.pinned_part import PinnedPart
    from ps_wire.v1 import operations_pb2 as pb

_TRIES: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds to wait for hosted code that uses the modules, while steps wait; and then to let those go on."""

_STEP_SECONDS: Final = 10.0
"""Seconds to wait for a step that is being applied."""

_MARK: Final = "@"
"""What stands between the name of an object and that of a snapshot of it."""

_NAME: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)


def snapshot(ctx: RequestContext, request: pb.SnapshotRequest, reply: pb.SnapshotReply) -> None:
    """Makes a snapshot of objects of this owner, says what there is of one, or removes it."""
    if not _NAME.fullmatch(request.name):
        raise InvalidArgumentError(
            f"the name of a snapshot is 1 to 64 letters, digits, '_', '.' and '-', not {request.name[:80]!r}"
        )
    if request.objects:
        found = _made(ctx, request)
    else:
        found = [each for each in _found(ctx, request.name) if request.id in (b"", each.value.snapshot.id)]
    if request.remove:
        for each in found:
            incidents.deleted(ctx, ctx.engine.registry.delete(each.name), [])
        return
    for each in found:
        ctx.describe(reply.objects.add(), each)
    if found:
        reply.parts.extend(found[0].value.snapshot.parts)
        reply.id = found[0].value.snapshot.id


def _made(ctx: RequestContext, request: pb.SnapshotRequest) -> list[HostedObject]:
    if _found(ctx, request.name):
        raise NameConflictError(
            f"owner {ctx.engine.name!r} has a snapshot {request.name!r} already: give this one another name, or remove "
            "that one"
        )
    objects = {each.object_id: ctx.find(each) for each in request.objects}
    mark = SnapshotMark(request.name, request.id, list(request.parts))
    made = _pin(ctx.engine, list(objects.values()), mark, ctx.account)
    for each in made:
        incidents.made(ctx, each)
    return made


def _found(ctx: RequestContext, name: str) -> list[HostedObject]:
    """What there is of a snapshot in the namespace of the caller."""
    pinned = [each for each in ctx.engine.registry.objects() if isinstance(each.value, Pinned)]
    return [
        each
        for each in pinned
        if each.value.snapshot.name == name and namespaces.of(each.name) == ctx.account.namespace
    ]


def _pin(engine: Engine, objects: Sequence[HostedObject], mark: SnapshotMark, account: Account) -> list[HostedObject]:
    """Objects that have some modules and tables as they are now, all as between the same steps of their optimizers.

    Raises `InvalidArgumentError` if one of them cannot be kept, `NameConflictError` if one is there already,
    `UnavailableError` if the owner is too busy, and as `Registry.get_or_make`. Nothing is kept then.
    """
    for each in objects:
        _check(each)
    pinned = _pinned_together(engine, objects, mark)
    made: list[HostedObject] = []
    try:
        for hosted, value in zip(objects, pinned, strict=True):
            made.append(_add(engine, f"{hosted.name}{_MARK}{mark.name}", value, account))
    except BaseException:
        for each in made:
            engine.registry.delete(each.name)
        raise
    return made


def _pinned_together(engine: Engine, objects: Sequence[HostedObject], mark: SnapshotMark) -> list[Pinned]:
    """What there is of objects between the same steps. Steps wait for it, so hosted code that holds a module is waited
    for a short while only; then steps go on, and it is tried again."""
    optimizers = _optimizers(engine, objects)
    for seconds in _TRIES:
        with suppress(StillBusy, TimeoutError), no_steps(optimizers, _STEP_SECONDS):
            until = time.monotonic() + seconds
            return [*_values(engine, objects, mark, until)]
        time.sleep(seconds)
    raise UnavailableError(
        f"owner {engine.name!r} has not come to snapshot {mark.name!r}: calls of its modules, or steps, take too long; "
        "try again later"
    )


def _values(engine: Engine, objects: Sequence[HostedObject], mark: SnapshotMark, until: float) -> Iterator[Pinned]:
    tables = {each.name: each.value.pin() for each in objects if each.is_table}
    for each in objects:
        if each.is_table:
            yield PinnedTable(mark, tables[each.name], partial(_is_there, engine, each.ref.object_id))
        else:  # in another thread: hosted code that holds the module may itself wait for a step
            copied = in_time(until, partial(_copied, engine, each, tables))
            yield PinnedModule(mark, copied, each.class_name, each.is_layer)


def _is_there(engine: Engine, object_id: str) -> bool:
    return engine.registry.get(object_id) is not None


def _check(hosted: HostedObject) -> None:
    if not (hosted.is_module or hosted.is_table):
        raise InvalidArgumentError(f"a snapshot is of modules and tables, and not of {hosted}")
    if not hosted.name:
        raise InvalidArgumentError(f"a snapshot is of objects that have a name: make {hosted} with name=")


def _optimizers(engine: Engine, objects: Sequence[HostedObject]) -> list[HostedObject]:
    own = {id(parameter) for each in objects for parameter in each.parameters.values()}
    optimizers = [each for each in engine.registry.objects() if isinstance(each.value, HostedOptimizer)]
    return [each for each in optimizers if not own.isdisjoint(map(id, each.value.parameters))]


def _copied(engine: Engine, hosted: HostedObject, tables: Mapping[str, PinnedPart]) -> nn.Module:
    """A copy of a module, which looks up in these tables where it has one of them in it."""
    try:
        memo: dict[int, Any] = {}
        with hosted.internals.quiet():
            copied: nn.Module = copy.deepcopy(hosted.value, memo)
            if inside := [each for each in memo.values() if isinstance(each, TableRef)]:
                copied = copy.deepcopy(hosted.value, {id(each): _pinned(each, engine.name, tables) for each in inside})
        copied.load_state_dict(state_of(engine, hosted))
    except Exception as error:  # hosted classes may do anything when they are copied
        what = "" if isinstance(error, InvalidArgumentError) else _uncopied(hosted.value)
        raise InvalidArgumentError(f"{hosted} cannot be kept in a snapshot: {what}{error}") from error
    return copied


def _uncopied(module: nn.Module) -> str:
    """Says which attribute of a module cannot be copied."""
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            try:
                copy.deepcopy(value)
            except Exception:
                if attribute != "_modules":  # those have their turn
                    return f"{name + '.' if name else ''}{attribute} cannot be copied: "
    return ""


def _pinned(table: TableRef, owner: str, tables: Mapping[str, PinnedPart]) -> PinnedTableRef:
    part = tables.get(table.full_name)
    if part is None:
        raise InvalidArgumentError(f"it looks up in table {table.name!r}, which has to be in the snapshot, too")
    if not part.has_all:
        raise InvalidArgumentError(f"it looks up in table {table.name!r}, which has rows on other owners")
    return PinnedTableRef(table, owner, part)


def _add(engine: Engine, name: str, value: Pinned, account: Account) -> HostedObject:
    def make() -> HostedObject:
        hosted = HostedObject(engine.name, value, engine.parameter_locks, name)
        hosted.made_with = "ps.snapshot(…)"
        return hosted

    made, is_new = engine.registry.get_or_make(name, NO_FINGERPRINT, make, account=account)
    if not is_new:
        raise NameConflictError(f"{name!r} was made by another trainer at the same time")
    return made
