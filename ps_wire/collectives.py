"""Collectives: what the members of a communicator do together. What both sides know of them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from ps_wire.codec.names import NAMED
from ps_wire.codec.trees import leaves_in
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.reducer import is_reducible
from ps_wire.refs import Ref
from ps_wire.v1 import operations_pb2 as pb

MOST_MEMBERS: Final = 4096
"""Most members of a communicator."""

MOST_OPEN: Final = 64
"""Most collectives of a communicator that are open at one time."""

LONGEST_NAME: Final = 128
"""Longest name of a communicator, in characters."""

KINDS: Final[dict[str, pb.CollectiveKind]] = {
    "barrier": pb.COLLECTIVE_BARRIER,
    "gather": pb.COLLECTIVE_GATHER,
    "broadcast": pb.COLLECTIVE_BROADCAST,
    "scatter": pb.COLLECTIVE_SCATTER,
    "all_gather": pb.COLLECTIVE_ALL_GATHER,
    "all_reduce": pb.COLLECTIVE_ALL_REDUCE,
}
"""The kinds of collectives, as messages have them."""

OPERATIONS: Final[dict[str, pb.Reduction]] = {
    "sum": pb.REDUCTION_SUM,
    "mean": pb.REDUCTION_MEAN,
    "min": pb.REDUCTION_MIN,
    "max": pb.REDUCTION_MAX,
    "product": pb.REDUCTION_PRODUCT,
}
"""The operations of `all_reduce`, as messages have them."""

_ROOTS: Final = {"gather": "to", "broadcast": "source", "scatter": "source"}


class Signature(NamedTuple):
    """What all members must agree on in one collective: one of `KINDS`, and for `all_reduce` one of `OPERATIONS`.

    The root is the rank that gathers, or that is the source; 0 where there is none.
    """

    kind: str
    root: int = 0
    op: str = ""

    def __str__(self) -> str:
        if self.kind in _ROOTS:
            return f"{self.kind}({_ROOTS[self.kind]}={self.root})"
        return f"{self.kind}({self.op!r})" if self.op else f"{self.kind}()"


def check_plain(value: Any) -> None:
    """Checks that a value has a meaning for every member: it holds no functions, classes or references."""
    for leaf in leaves_in(value):
        if isinstance(leaf, (*NAMED, Ref)):
            raise InvalidArgumentError(f"{leaf!r} cannot be sent to other members: send plain values and tensors")


def check_reducible(value: Any, op: str) -> None:
    """Checks that a value can be reduced: it is, or holds, nothing but numbers and dense tensors."""
    if isinstance(value, (list, tuple)):
        for each in value:
            check_reducible(each, op)
    elif isinstance(value, dict):
        for each in value.values():
            check_reducible(each, op)
    elif not is_reducible(value, op):
        if isinstance(value, torch.Tensor):
            raise InvalidArgumentError(f"a tensor of {value.dtype} and layout {value.layout} has no {op}")
        raise InvalidArgumentError(
            f"a {type(value).__name__} has no {op}: all_reduce takes numbers (integers of 64 bits), dense tensors, and "
            "lists, tuples and dictionaries of these"
        )
