"""Makes objects on owners, and attaches to them."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from ps_wire.arguments import check_flag, check_text
from ps_wire.codec.names import name_of
from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.sources import own_fingerprint
from ps_wire.codec.values import Encoder
from ps_wire.numerics.seeds import of_torch
from ps_wire.tables.names import SHARD
from ps_wire.v1.frames_pb2 import Reply, Request
from ps_wire.v1.operations_pb2 import AttachRequest, CreateRequest
from trainer_client.contexts.current import current_context
from trainer_client.handles import references
from trainer_client.handles.handles import RemoteObject, handle_from
from trainer_client.numerics import Seeding
from trainer_client.pending import DEFAULT, Pending
from trainer_client.replicas.classes import MadeBy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_client.handles.references import RRef
    from trainer_client.session.session import Session


_log = logging.getLogger(__name__)


def create(
    session: Session,
    cls: type | str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    name: str,
    seed: int | None,
    seeding: Seeding,
    timeout: float | None,
    replace: bool = False,
) -> Pending[Any]:
    """Makes an object on an owner, or attaches to that of the name; gives a handle. Arguments as in `Client.module`."""
    check_text("name", name)
    check_flag("replace", replace)
    payload = PayloadWriter()
    context = current_context()
    handles: list[RRef] = []
    encoder = Encoder(payload, partial(references.handle_message, handles, context))
    default_seed = seeding.next(context.seeds if context is not None else None)
    own_seed = None if seed is None else of_torch(seed)
    source = own_fingerprint(cls) if isinstance(cls, type) else b""
    request = CreateRequest(
        class_name=name_of(cls), name=name, seed=own_seed, default_seed=default_seed, replace=replace, source=source
    )
    encoder.encode_into(request.args, args)
    encoder.encode_into(request.kwargs, dict(sorted(kwargs.items())))
    made_by = None if handles else MadeBy.of(cls, args, kwargs)

    # It keeps the handles among the arguments alive until the object is made.
    read = partial(_made, session, made_by, (args, kwargs, handles))
    return session.submit(Request(create=request), payload, read, timeout)


def _made(session: Session, made_by: MadeBy | None, held: object, reply: Reply, _: PayloadReader) -> RemoteObject:
    handle = handle_from(session, reply.create.object)
    handle.made_by, handle.was_made = made_by, reply.create.created
    if reply.create.warning:
        _log.warning("%s", reply.create.warning)
    return handle


def create_shard(session: Session, name: str, settings: Mapping[str, Any], replace: bool) -> Pending[RemoteObject]:
    """Makes the rows of a table on an owner, or finds those of that name. They have a seed of their own."""
    return create(session, SHARD, (), settings, name, None, Seeding(), DEFAULT, replace)


def attach_named(session: Session, name: str) -> Pending[RemoteObject]:
    """A handle to the object of that name."""
    return attach(session, AttachRequest(name=name))


def attach(session: Session, request: AttachRequest) -> Pending[RemoteObject]:
    """A handle to an object that exists."""
    return session.submit(Request(attach=request), None, partial(_attached, session))


def _attached(session: Session, reply: Reply, _: PayloadReader) -> RemoteObject:
    handle = handle_from(session, reply.attach.object)
    if reply.attach.HasField("layout"):
        handle.given_by = "ps.scheduler" if reply.attach.layout.scheduler else "ps.optimizer"
    return handle
