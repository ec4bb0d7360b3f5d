"""The handlers of the operations on the directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ps_service.execution.deferred import Deferred
from ps_service.group.lineage import Lineage
from ps_service.group.rendezvous import SAME
from ps_service.requests import fields
from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from ps_service.group.directory import Wait
    from ps_service.group.formation import MemberEntry, Progress
    from ps_service.group.rendezvous import RendezvousResult
    from ps_service.requests.context import RequestContext
    from ps_wire.v1 import operations_pb2 as pb


def register(ctx: RequestContext, request: pb.RegisterRequest, reply: pb.RegisterReply) -> None:
    """Enters the sender into the directory; into a group that begins as a whole, with all its members."""
    directory, name, address = ctx.engine.directory, request.name, request.address
    seconds = fields.wait_seconds(request)
    id = request.id if request.HasField("id") else None
    if not request.world_size:
        lineage = Lineage(request.incarnation, tuple(request.earlier))
        entry = directory.enter(ctx.trainer, name, address, id, is_owner=request.is_owner, lineage=lineage)
        if ctx.effects is not None:
            ctx.effects.enters(entry)
        describe(reply.member, entry)
        return
    if id is None:
        raise InvalidArgumentError(f"{name!r} needs a rank in a group of {request.world_size}")

    def finish(found: Progress) -> None:
        reply.member.name, reply.member.address, reply.member.id = name, address, id
        for entry in found.members:
            describe(reply.members.add(), entry)
        reply.missing.extend(found.missing)

    _when_over(ctx, directory.arrive(ctx.trainer, name, address, id, request.world_size), seconds, finish)


def lookup(ctx: RequestContext, request: pb.LookupRequest, reply: pb.LookupReply) -> None:
    """Finds a member in this owner's directory, or in that of the group that it is a member of."""
    id, seconds = request.id if request.HasField("id") else None, fields.wait_seconds(request)
    engine = ctx.engine
    if engine.membership.peers.keeps_directory:
        wait = engine.directory.awaited(request.name, id)
        _when_over(ctx, wait, seconds, lambda entry: describe(reply.member, entry))
    else:
        reply.member.CopyFrom(engine.membership.peers.find(request.name, id, seconds))


def members(ctx: RequestContext, request: pb.MembersRequest, reply: pb.MembersReply) -> None:
    """Lists the members of this owner's directory, or of that of its group, once there are enough."""
    engine, seconds = ctx.engine, fields.wait_seconds(request)
    if not engine.membership.peers.keeps_directory:
        reply.CopyFrom(engine.membership.peers.gathered(request))
        return

    def finish(found: list[MemberEntry]) -> None:
        for entry in found:
            describe(reply.members.add(), entry)

    wait = engine.directory.gathered(request.at_least, request.owners_at_least)
    _when_over(ctx, wait, seconds, finish)


def rendezvous(ctx: RequestContext, request: pb.RendezvousRequest, reply: pb.RendezvousReply) -> None:
    """Lets members wait for each other."""
    seconds = fields.wait_seconds(request)
    value = ctx.read(request.value) if request.HasField("value") else None
    wait = ctx.engine.directory.rendezvous(
        ctx.trainer,
        request.key,
        request.name,
        tuple(request.names),
        SAME if request.again else value,
        leaving=request.leaving,
        stays=request.stays,
        number=request.arrival,
    )

    def finish(result: RendezvousResult) -> None:
        reply.missing.extend(result.missing)
        reply.absent.extend(result.absent)
        reply.names.extend(result.values)
        ctx.write(reply.values, list(result.values.values()))

    _when_over(ctx, wait, seconds, finish)


def describe(message: pb.Member, entry: MemberEntry) -> None:
    """Describes a member in a message."""
    message.name, message.address, message.id, message.is_owner = entry.name, entry.address, entry.id, entry.is_owner


def _when_over(ctx: RequestContext, wait: Wait, seconds: float, finish: Callable[[Any], None]) -> None:
    """Writes the reply once the wait is over."""
    if not seconds > 0:
        wait.expire()
    elif not wait.future.done():
        ctx.engine.compute.unless_done(seconds, wait.future, wait.expire)
    ctx.defer(Deferred(wait.future, cancel=wait.expire), finish)
