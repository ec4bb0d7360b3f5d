"""Values that trainers report with their gradients, such as a loss: names, kinds, sizes, and how they are reduced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import torch

from ps_wire.codec.values import Encoder
from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.limits import MAX_REPORTED_BYTES, MAX_REPORTED_NAME, MAX_REPORTED_NAMES
from ps_wire.numerics.reducer import is_reducible
from ps_wire.v1 import operations_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    from ps_wire.codec.payload import PayloadWriter

Reduce = Literal["mean", "sum", "keep"]
"""How values of several gradients become one: their mean, their sum, or all of them by trainer."""

Reductions = Reduce | Mapping[str, Reduce]
"""One for all values, or one by name."""

Values = Mapping[str, Any] | None
"""Plain values by name; None for none."""

REDUCTIONS: Final[dict[str, pb.Reduction]] = {
    "mean": pb.REDUCTION_MEAN,
    "sum": pb.REDUCTION_SUM,
    "keep": pb.REDUCTION_KEEP,
}
"""The reductions, as messages have them."""


class Reported(NamedTuple):
    """A value that comes with gradients: a number or a dense tensor, or any plain value that is kept."""

    reduce: str
    value: Any


class Report(dict[str, Reported]):
    """The values of one push or step, by name, as they are sent."""


def reported(values: Mapping[str, Any], reduce: Reductions) -> Report:
    """The values of one push or step, by name. Where reductions have names, too, the other values are averaged.

    With `mean` and `sum`, values are numbers and dense tensors; a tensor without dimensions, such as a loss, counts as
    the number that it holds. Values that were made a report before are that report.
    """
    if isinstance(values, Report):
        return values
    if not isinstance(values, Mapping):
        raise InvalidArgumentError(f"values is a dictionary by name, not a {type(values).__name__}")
    chosen: Mapping[str, Any] = dict.fromkeys(values, reduce) if isinstance(reduce, str) else reduce
    if not isinstance(chosen, Mapping):
        raise InvalidArgumentError(f"reduce is one of {', '.join(REDUCTIONS)}, or a dictionary of these by name")
    if unknown := chosen.keys() - values.keys():
        raise InvalidArgumentError(f"reduce names {', '.join(sorted(map(str, unknown)))}, and there is no such value")
    made = Report()
    for name, value in values.items():
        made[name] = Reported(how := chosen.get(name, "mean"), _as_sent(value, how))
    check(made)
    return made


def check(values: Mapping[str, Reported]) -> None:
    """Checks the values of one push or step."""
    if len(values) > MAX_REPORTED_NAMES:
        raise TooLargeError(f"{len(values)} values are reported with one gradient; at most {MAX_REPORTED_NAMES} may be")
    for name, (reduce, value) in values.items():
        check_name(name)
        if reduce not in REDUCTIONS:
            raise InvalidArgumentError(f"a value is reduced by one of {', '.join(REDUCTIONS)}, not by {reduce!r}")
        if reduce != "keep" and not is_reducible(value, reduce):
            kind = f"{value.dtype} tensor" if isinstance(value, torch.Tensor) else type(value).__name__
            raise InvalidArgumentError(
                f"{name!r} is a {kind}, which has no {reduce}: numbers (integers of 64 bits) and dense tensors have "
                "one; other values can be kept"
            )


def check_name(name: object) -> None:
    """Raises `InvalidArgumentError` if this is no name of a value."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_REPORTED_NAME:
        raise InvalidArgumentError(f"the name of a value is a text of 1 to {MAX_REPORTED_NAME} characters")


def write(
    messages: RepeatedCompositeFieldContainer[pb.ReportedValue], payload: PayloadWriter, values: Mapping[str, Reported]
) -> None:
    """Writes values into a request."""
    before, encoder = payload.nbytes, Encoder(payload)
    for name, (reduce, value) in values.items():
        encoder.encode_into(messages.add(name=name, reduction=REDUCTIONS[reduce]).value, value)
    check_size(sum(each.ByteSize() for each in messages) + payload.nbytes - before)


def check_size(nbytes: int) -> None:
    """Checks the bytes of all values of one push or step."""
    if nbytes > MAX_REPORTED_BYTES:
        raise TooLargeError(
            f"the values that are reported with one gradient have {nbytes:,} bytes; at most {MAX_REPORTED_BYTES:,} are "
            "taken. Send larger ones by calls of an object of your own"
        )


def _as_sent(value: Any, reduce: Any) -> Any:
    """The value without its graph; with a reduction, a tensor without dimensions as a number."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if reduce != "keep" and value.layout is torch.strided and not value.dim():
            return value.item()
    elif isinstance(value, (np.generic, np.ndarray)) and reduce != "keep":
        return value.item() if not value.ndim else torch.from_numpy(np.ascontiguousarray(value))
    return value
