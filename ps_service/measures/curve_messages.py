"""Curves in messages: those of pages, of checkpoints, and of optimizers that move."""

from __future__ import annotations

from typing import Final

from ps_service.measures.curve import Points
from ps_service.measures.curves import CurveNews
from ps_wire.v1.operations_pb2 import Curve

_ABOUT: Final = ("number", "optimizer", "class_name", "name", "seen", "width", "start")


def message_of(told: CurveNews) -> Curve:
    """The message about a curve."""
    return Curve(**{name: getattr(told, name) for name in _ABOUT}, **told.points._asdict())


def told_in(message: Curve) -> CurveNews:
    """What a message tells of a curve."""
    points = Points(*(getattr(message, name) for name in Points._fields))
    return CurveNews(**{name: getattr(message, name) for name in _ABOUT}, points=points)
