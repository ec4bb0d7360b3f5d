"""Claims of names and their answers, as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps_service.group.lineage import Lineage
from ps_service.group.registers import Answer, Claim, Entry, Outcome
from ps_wire.v1 import directory_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable


def request(claim: Claim, version: str) -> pb.ClaimRequest:
    """The message of a claim. `version` is that of the entries that the owner has from the keeper."""
    entry = _message(claim.entry)
    entry.earlier.extend(claim.entry.lineage.earlier)
    return pb.ClaimRequest(entry=entry, keepers=claim.keepers, leaves=claim.leaves, version=version)


def claim_of(message: pb.ClaimRequest) -> Claim:
    """The claim of a message."""
    return Claim(_entry(message.entry), tuple(message.keepers), message.leaves)


def reply(answer: Answer, version: str, entries: Iterable[Entry]) -> pb.ClaimReply:
    """The message of an answer, with the keeper's entries if the owner does not have them."""
    entry = None if answer.entry is None else _message(answer.entry)
    return pb.ClaimReply(
        outcome=answer.outcome,
        keeper=answer.keeper,
        entry=entry,
        number=answer.number,
        version=version,
        entries=map(_message, entries),
    )


def answer_of(message: pb.ClaimReply) -> Answer:
    """The answer of a message. Raises `ValueError` if this release does not know its outcome."""
    entry = _entry(message.entry) if message.HasField("entry") else None
    return Answer(message.keeper, Outcome(message.outcome), entry, message.number)


def entries_of(message: pb.ClaimReply) -> list[Entry]:
    """The entries in the message of an answer."""
    return [_entry(each) for each in message.entries]


def _message(entry: Entry) -> pb.DirectoryEntry:
    return pb.DirectoryEntry(
        name=entry.name,
        address=entry.address,
        id=entry.id,
        epoch=entry.epoch,
        incarnation=entry.lineage.incarnation,
        keeper=entry.keeper,
        gone=entry.gone,
    )


def _entry(message: pb.DirectoryEntry) -> Entry:
    return Entry(
        message.name,
        message.address,
        message.id if message.HasField("id") else None,
        message.epoch,
        Lineage(message.incarnation, tuple(message.earlier)),
        message.keeper,
        message.gone,
    )
