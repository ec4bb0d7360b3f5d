"""Decisions about rounds as messages, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ps_service.policies.decisions import Changed, Decided, Decision, Emptied, Entry, Left, Released
from ps_service.policies.offers import Close, Counted, OfferKey, Pooled
from ps_wire import policies
from ps_wire.codec.payload import PayloadReader
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import check_finite, check_whole
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ps_service.training.aggregator import Aggregator

_MOST: Final = 1 << 62
"""The largest number of a decision or a version that may come. Those that follow it still fit into a message."""


def write(message: pb.Decisions, decided: Decided) -> None:
    """Writes decisions."""
    message.base, message.epoch = decided.base, decided.epoch
    message.first = decided.entries[0].number if decided.entries else decided.base + 1
    for entry in decided.entries:
        _write_decision(message.decisions.add(), entry.decision)


def tell_policy(reply: pb.StepReply, rounds: Aggregator) -> None:
    """Says that nothing was applied, because the optimizer has rounds over several owners."""
    reply.owners.extend(rounds.owners)
    Encoder(None).encode_into(reply.policy, policies.to_plain(rounds.policy))


def read(message: pb.Decisions) -> list[Entry]:
    """The decisions of a message. Raises `InvalidArgumentError` for a kind or a number that no decision has."""
    _check_count("base", message.base)
    _check_count("first", message.first)
    return [Entry(message.first + place, _read_decision(each)) for place, each in enumerate(message.decisions)]


def _write_decision(message: pb.Decision, decision: Decision) -> None:
    if isinstance(decision, Close):
        message.closed.version, message.closed.divisor = decision.version, decision.divisor
        message.closed.counted.extend(counted_message(each) for each in decision.counted)
    elif isinstance(decision, Pooled):
        message.pooled.CopyFrom(counted_message(decision.counted))
    elif isinstance(decision, Released):
        message.released.CopyFrom(key_message(decision.key))
    elif isinstance(decision, Emptied):
        message.emptied = True
    elif isinstance(decision, Left):
        message.left.trainer, message.left.epoch = decision.trainer, decision.epoch
    else:
        Encoder(None).encode_into(message.policy, policies.to_plain(decision.policy))


def _read_decision(message: pb.Decision) -> Decision:
    kind = message.WhichOneof("what")
    if kind == "closed":
        closed = message.closed
        _check_count("version", closed.version)
        check_whole("divisor", closed.divisor, 1, _MOST)
        return Close(closed.version, tuple(map(read_counted, closed.counted)), closed.divisor)
    if kind == "pooled":
        return Pooled(read_counted(message.pooled), 0)
    if kind == "released":
        return Released(read_key(message.released))
    if kind == "emptied":
        return Emptied()
    if kind == "left":
        return Left(message.left.trainer, message.left.epoch)
    if kind == "policy":
        return Changed(policies.from_plain(Decoder(PayloadReader(None)).decode(message.policy)))
    raise InvalidArgumentError("a decision is of a kind that this owner does not know; is it older than the others?")


def read_applied(applied: Mapping[str, int]) -> dict[str, int]:
    """The numbers of the last decisions that other owners have carried out. Raises `InvalidArgumentError`."""
    for number in applied.values():
        _check_count("the number of a decision", number)
    return dict(applied)


def counted_message(counted: Counted) -> pb.CountedGradient:
    """The message of a gradient in a round."""
    return pb.CountedGradient(key=key_message(counted.key), staleness=counted.staleness, weight=counted.weight)


def read_counted(message: pb.CountedGradient) -> Counted:
    """The gradient of a message. Raises `InvalidArgumentError` if its weight is none."""
    check_finite("weight", message.weight, 0.0)
    return Counted(read_key(message.key), message.staleness, message.weight)


def _check_count(name: str, number: int) -> None:
    check_whole(name, number, 0, _MOST)


def key_message(key: OfferKey) -> pb.OfferKey:
    """The message of the name of an offer."""
    return pb.OfferKey(trainer=key.trainer, number=key.number, epoch=key.epoch)


def read_key(message: pb.OfferKey) -> OfferKey:
    """The name of an offer in a message."""
    return OfferKey(message.trainer, message.number, message.epoch)
