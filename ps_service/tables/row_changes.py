"""What changes the rows of a shard: the effects that a durable log keeps, and what is told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

Kind = Literal["added", "removed", "cleared", "seen", "admission", "images", "stepped"]


class RowChange(NamedTuple):
    """A change of rows. Made again, in their order, on rows of any later moment, changes give the rows that there were
    after the last of them: they have what results, and not what was done. Only those that are `stepped` need
    the rows that there were before.

    `time` is that of the rows, in microseconds. `values` has for `added` and `removed` the `ids`, in the order in which
    their rows got their numbers or were freed; for `seen` the `ids` that were looked up at the time, and `sightings`
    afterwards; for `images` `ids`, `values`, what the optimizer keeps under `state.` and its name, and `seen` and
    `sightings` where those were put, too; for `admission` what the gate has changed. A step is `images` or, where
    that is less and gives the same rows, `stepped`: the gradients that `RowSteps.change` gives.
    """

    kind: Kind
    time: int
    values: Mapping[str, Any]


class RowLog(Protocol):
    """Is told what changes the rows of a shard, under its lock, in the order of the changes."""

    def check(self, nbytes: int) -> None:
        """Raises `StorageError` if it has no room for so many bytes and a little more."""

    def note(self, change: RowChange) -> None:
        """Takes a change. Its tensors stay as they are until the changes are kept."""

    def telling(self) -> AbstractContextManager[None]:
        """A block whose changes are kept together at its end. Raises `StorageError` if they could not be: they will be
        before all later ones."""
