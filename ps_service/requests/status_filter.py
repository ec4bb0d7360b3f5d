"""What of the status an identity sees that is no admin: its own sessions and quotas, and the objects of its
namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ps_service.access import namespaces
from ps_service.requests.administration import session_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_service.access.identities import Asker
    from ps_service.engine import Engine
    from ps_wire.v1.operations_pb2 import StatusReply

_OF_THE_OWNER: Final = frozenset(("started", "restored", "checkpoint", "log", "draining", "drained", "replaced"))
"""Kinds of events that concern all trainers."""


def reduce(engine: Engine, asker: Asker, reply: StatusReply) -> None:
    """Removes from a status what belongs to other identities or namespaces. Sums of all stay."""
    own = {each.trainer for each in engine.sessions.all() if each.identity.name == asker.identity.name}
    ids = session_ids(engine)
    shown = {ids[each] for each in own if each in ids}
    names = {name for each in own if engine.sessions.is_known_as(name := each.hex()[:8], asker.identity.name)}

    is_near = near(asker)
    for entries in (reply.objects, reply.optimizers, reply.tables, reply.communicators):
        _keep(entries, lambda each: is_near(each.name))
    _keep(reply.trainers, lambda each: each.id in shown)
    _keep(reply.passes, lambda each: each.id.partition("/")[0] in names)
    sections = {f"identity.{asker.identity.name}", f"namespace.{asker.namespace or namespaces.DEFAULT}", "all"}
    _keep(reply.quotas, lambda each: each.section in sections)
    _keep(reply.events, lambda each: each.trainer in names or each.kind in _OF_THE_OWNER)


def near(asker: Asker) -> Callable[[str], bool]:
    """Whether the object of a name is in the namespace of an identity."""
    return lambda name: bool(name) and namespaces.of(name) == asker.namespace


def _keep(entries: Any, is_kept: Callable[[Any], bool]) -> None:
    found = [each for each in entries if is_kept(each)]
    del entries[:]
    entries.extend(found)
