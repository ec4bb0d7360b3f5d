"""Tables among the arguments of calls and constructors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.access import namespaces
from ps_service.passes.table_refs import TableRef
from ps_wire.codec import dtypes

if TYPE_CHECKING:
    from ps_service.access.identities import Asker
    from ps_service.engine import Engine
    from ps_service.passes.arguments import Arguments
    from ps_wire.v1.values_pb2 import TableName


def table(
    engine: Engine, trainer: bytes, asker: Asker | None, is_asked: bool, arguments: Arguments, message: TableName
) -> TableRef:
    """What hosted code gets for a table in a request of a trainer, or, unless it `is_asked` now, in one from which an
    object is made again. The name in the message gets its namespace, so that it has that when it is kept. Raises
    `InvalidArgumentError` if it names another namespace, and as `TableRef.check`."""
    arguments.has_handles = True  # its look-ups may wait for other owners
    if is_asked:
        session = engine.sessions.get(trainer)
        namespace = asker.namespace if asker is not None else "" if session is None else session.namespace
        may_leave = asker is None or asker.identity.is_everywhere
        message.name = namespaces.full_name(namespace, may_leave, message.name)
    rows = message.rows if message.HasField("rows") else None
    made = TableRef(engine, message.name, message.dim, dtypes.from_wire(message.dtype), rows, tuple(message.owners))
    if is_asked:
        made.check()
    return made
