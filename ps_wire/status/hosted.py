"""What an owner hosts: objects, optimizers and tables."""

from __future__ import annotations

from dataclasses import dataclass

from ps_wire.status.reading import Readable


@dataclass(frozen=True, slots=True)
class ObjectStatus(Readable):
    """A hosted object that is no optimizer.

    Attributes:
        name: Its name; empty for an anonymous object.
        class_name: Its class.
        parameters: Elements of its parameters.
        bytes: Bytes of its parameters and buffers.
        references: References of trainers.
    """

    name: str
    class_name: str
    parameters: int
    bytes: int
    references: int


@dataclass(frozen=True, slots=True)
class OptimizerStatus(Readable):
    """An optimizer.

    Attributes:
        name: Its name; empty for an anonymous one.
        class_name: Its class.
        version: Number of its steps since it was first made.
        parameters: Elements of its parameters.
        policy: When gradients count, as Python shows it; empty if every step is applied at once.
        members: Trainers that use it.
        waiting_for: The trainers that a round waits for now, up to 16; or "more trainers to join".
        lr: The learning rate of each parameter group, up to 16; empty if there is none.
        steps_per_second: Its steps per second over the last ten seconds, or over longer for slower steps.
        staleness_p50: Half of its last 512 steps were not staler, in steps; null if none had read parameters here.
        staleness_p99: 99 % of its last 512 steps were not staler, in steps; null as above.
        owners: The owners that its rounds are over, if there are several.
    """

    name: str
    class_name: str
    version: int
    parameters: int
    policy: str
    members: int
    waiting_for: tuple[str, ...]
    lr: tuple[float, ...]
    steps_per_second: float
    staleness_p50: int | None
    staleness_p99: int | None
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableStatus(Readable):
    """This owner's rows of an embedding table.

    Attributes:
        name: Its name.
        rows: Number of rows.
        bytes: Bytes in use by rows, by what the optimizer keeps for them, and by the map of ids.
        dim: Numbers in a row.
        updates: Updates since the owner has started, as all that follow.
        looked_up: Ids that were looked up: in a look-up of rows each once, in bags as often as they are there.
        added: Rows that came into being because their ids were looked up.
        refused: Ids that training has looked up and that were not admitted.
        missing: Ids without a row that were only read.
        loaded: Rows that came into being because they were put or loaded.
        expired: Rows that were removed because nobody had looked them up for long.
        evicted: Rows that were removed to make room.
        removed: Rows that were removed by a program.
        gradients: Ids that backwards have brought gradients for, as often as programs have given them.
        updated: Rows that steps have updated.
        late: Rows that had gone when a gradient for them was to be applied.
    """

    name: str
    rows: int
    bytes: int
    dim: int
    updates: int
    looked_up: int
    added: int
    refused: int
    missing: int
    loaded: int
    expired: int
    evicted: int
    removed: int
    gradients: int
    updated: int
    late: int
