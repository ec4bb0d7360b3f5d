"""Entries of the directory in checkpoints and in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.group.lineage import Lineage
from ps_wire.v1 import checkpoint_pb2 as pb
from ps_wire.v1.operations_pb2 import Member

if TYPE_CHECKING:
    from ps_service.engine import Engine
    from ps_service.group.formation import MemberEntry


def record(entry: MemberEntry) -> pb.MemberRecord:
    """The record of an entry."""
    member = Member(name=entry.name, address=entry.address, id=entry.id, is_owner=entry.is_owner)
    incarnation, earlier = entry.lineage
    return pb.MemberRecord(member=member, session=entry.session, incarnation=incarnation, earlier=earlier)


def enter(engine: Engine, entry: pb.MemberRecord) -> None:
    """Enters a member of a group, whose session there is, into the directory."""
    member, lineage = entry.member, Lineage(entry.incarnation, tuple(entry.earlier))
    engine.directory.enter(
        entry.session, member.name, member.address, member.id, is_owner=member.is_owner, lineage=lineage
    )
