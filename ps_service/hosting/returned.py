"""What a run has done to the bound copy that it used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ps_service.hosting.containers import SharedContainer
    from ps_service.hosting.parts import Part


class Returned(NamedTuple):
    """How a bound copy came back.

    Attributes:
        whole: Whether the run has left the structure as it was: no parameter or submodule added, replaced or deleted.
        held: Whether something goes on using the bound copy or the leaves.
        late: Whether it is the bound copy, which hooks may change on the way back.
        changed: Whether the run has changed a container or attribute that leads to parameters or submodules.
        failed: Why what it has changed could not be handed on; None if it could.
        remembered: Why what it has stored under an identity would not be found again; empty if it has not.
        reusable: Whether the bound copy may serve another run.
    """

    whole: bool
    held: bool
    late: bool
    changed: bool
    failed: Exception | None
    remembered: str
    reusable: bool


class Change(NamedTuple):
    """What a run has set, or put into a container of the copy.

    Attributes:
        part: Where an attribute was set; None for a container.
        name: Name of the attribute; empty for a container.
        value: What was set; a list of what was put into a container.
        container: The container.
    """

    part: Part | None
    name: str
    value: Any
    container: SharedContainer | None = None
