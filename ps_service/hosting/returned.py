"""The changes of a run to its bound copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ps_service.hosting.containers import SharedContainer
    from ps_service.hosting.parts import Part


class Returned(NamedTuple):
    """The state of a bound copy after its run.

    Attributes:
        whole: Whether the run has left the structure as it was: no parameter or submodule added, replaced or deleted.
        held: Whether other objects refer to the bound copy or to leaves.
        late: Whether they refer to the bound copy, which hooks may change in a backward.
        changed: Whether the run has changed a container or attribute that refers to parameters or submodules.
        failed: The error if its changes could not be applied to the original; None otherwise.
        remembered: A message if it has stored a value under an identity, where later calls would not find it.
        reusable: Whether the bound copy may be used for another run.
    """

    whole: bool
    held: bool
    late: bool
    changed: bool
    failed: Exception | None
    remembered: str
    reusable: bool


class Change(NamedTuple):
    """An attribute that a run has set, or a change to a container of the copy.

    Attributes:
        part: The part whose attribute was set; None for a container.
        name: Name of the attribute; empty for a container.
        value: The value of the attribute; for a container the list of added values.
        container: The container.
    """

    part: Part | None
    name: str
    value: Any
    container: SharedContainer | None = None
