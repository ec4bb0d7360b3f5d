"""Defines the work, unit and target of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
IN_FLIGHT: Final = 256
"""Calls of one burst of `calls_in_flight`."""

PER_SECOND: Final = {"calls/s": 1, "steps/s": 1, "k samples/s": 1000}
"""Units in which more is better, and how many make one of them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of processes of each kind.

    Attributes:
        owners: Server processes.
        trainers: Client processes.
        all_cores: Whether torch has a thread per core in each.
        durable: Whether owners have a data directory, and each side a promise of its own for what is acknowledged.
        tls: Whether the sides are ours over TCP, on the direct port and on gRPC, each with TLS and without.
    """

    owners: int = 1
    trainers: int = 1
    all_cores: bool = False
    durable: bool = False
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: Its name, also in `bench.json`.
        work: Description of the work, for people.
        kind: Name of the work, for the sides.
        unit: Unit of its results: `us` or `ms` per operation, or operations per second.
        target: The target of the speed-up if both sides pick their transports; None if there is no target.
        target_tcp: The target of the speed-up if both use TCP.
        over_paused: The target of our time divided by that of local torch with pauses; None if there is no target.
        shape: The processes that it needs.
        bytes: Size of the payload, if it has one.
        per_operation: Calls in one operation of the work, or samples.
        stateful: Whether parameters change, so that every side has to take the same steps.
        local: Whether the work exists in one process.
        zipf: Whether few ids are frequent and most are rare, as in real data; otherwise all are equally frequent.
        racing: Whether the results depend on the order in which steps come, so that only losses are compared.
        tolerance: How much higher than those of local torch the last losses may be, as a part of the first, where only
            losses are compared.
        seconds: Approximate time of one turn of one side.
        gloo: Whether it is compared with an all-reduce of gloo instead of torch.distributed.rpc.
        baseline: The row that it is compared with in the same rounds.
        over_plain: The target of the time with TLS divided by that without; None if there is no target.
        over_baseline: The target of our time divided by that of the baseline; None if there is no target.
        tables: Number of tables of one look-up.
        ours_only: Whether no other side has such work.
        steps: Steps of a turn of a steady row, after an eighth as many of warm-up; 0 for other rows.
        sparse: Whether the tables of the recommender have sparse gradients.
        bare: Whether the bare program has such work.
        large: Whether our own choice of transport and local torch are its only sides, because it takes long.
    """

    name: str
    work: str
    kind: str
    unit: str
    target: float | None = None
    target_tcp: float | None = None
    over_paused: float | None = None
    shape: Shape = Shape()
    bytes: int = 0
    per_operation: int = 1
    stateful: bool = False
    local: bool = False
    zipf: bool = False
    racing: bool = False
    tolerance: float = 0.05
    seconds: float = 0.4
    gloo: bool = False
    baseline: str = ""
    over_baseline: float | None = None
    over_plain: float | None = None
    tables: int = 1
    ours_only: bool = False
    steps: int = 0
    sparse: bool = False
    bare: bool = False
    large: bool = False

    def shown(self, seconds: float) -> float:
        """Seconds per operation, in this row's unit."""
        if self.unit in PER_SECOND:
            return self.per_operation / seconds / PER_SECOND[self.unit]
        return seconds * {"us": 1e6, "ms": 1e3}[self.unit] / self.per_operation


def _echo(name: str, size: int, unit: str, target: float, target_tcp: float) -> Row:
    return Row(f"echo_{name}", f"tensor of {name} there and back", "echo", unit, target, target_tcp, bytes=size)


def _steady(name: str, work: str, kind: str, unit: str = "ms", steps: int = 400, **more: Any) -> Row:
    return Row(f"steady_{name}", work, kind, unit, steps=steps, stateful=True, local=True, **more)


def _steady_neumf(name: str, work: str, kind: str, **more: Any) -> Row:
    return _steady(name, work, kind, "k samples/s", per_operation=1024, sparse=True, **more)


def _durable(name: str, work: str, kind: str, unit: str = "ms", **more: Any) -> Row:
    return Row(
        f"step_durable{name}", work, kind, unit, shape=Shape(durable=True), stateful=True, local=True, **more
    )  # fmt: skip


ROWS: Final = (
    Row("empty_call", "sync call, no arguments", "empty_call", "us", 2.5, 2),
    Row("empty_call_async", "the same, awaited in a loop", "empty_call_async", "us", 2.5, 2),
    _echo("4B", 4, "us", 2.5, 2),
    _echo("64KiB", 64 * KIB, "us", 2, 2),
    _echo("1MiB", MIB, "us", 2, 1.1),
    _echo("16MiB", 16 * MIB, "ms", 3, 1),
    _echo("64MiB", 64 * MIB, "ms", 5, 1.3),
    Row(
        "calls_in_flight", f"{IN_FLIGHT} small async calls at once", "calls_in_flight", "calls/s", 4, 2.5,
        per_operation=IN_FLIGHT,
    ),
    Row("emb_forward", "EmbeddingBag 1M x 64, 4096 bags of 20", "emb_forward", "ms", 1.5, 1.1, local=True),
    Row("emb_step", "the same, forward + backward + SGD", "emb_step", "ms", 2.5, 2, stateful=True, local=True),
    Row(
        "table_step_zipf", "a table of 1M x 64, 4096 bags of 20 by Zipf 1.2, step of SGD", "table_step", "ms", 4, 2.5,
        stateful=True, local=True, zipf=True,
    ),
    Row(
        "table_step_uniform", "the same, with all ids equally frequent", "table_step", "ms", 2,
        stateful=True, local=True,
    ),
    Row(
        "table_grow", "a look-up of 81,920 new ids in a pass, rows of 16", "table_grow", "ms",
        seconds=0.2, baseline="table_seen", over_baseline=3, ours_only=True,
    ),
    Row(
        "tables_26", "26 tables with 1024 bags of 3 ids each in one look-up, step of SGD", "tables", "ms",
        stateful=True, local=True, baseline="tables_1", over_baseline=1.5, tables=26,
    ),
    Row(
        "convnet_step", "the tutorial's ConvNet, batch 32, full step", "convnet_step", "ms", 1.1, 1,
        over_paused=1.1, stateful=True, local=True, seconds=0.6,
    ),
    Row(
        "replica_step", "10 M parameters in the trainer, push + pull", "replica", "ms", 2, 1,
        bytes=40_000_000, stateful=True, local=True, seconds=0.8,
    ),
    Row(
        "replica_small", "the same with 10 thousand parameters", "replica", "us", 1.2, 1.2,
        bytes=40_000, stateful=True, local=True,
    ),
    Row(
        "rnn_step", "embedding and decoder remote, LSTM local", "rnn_step", "ms", 2, 1.5,
        stateful=True, local=True,
    ),
    Row(
        "small_recommender", "NeuMF in three modules, batch 1024, full step", "recommender", "ms", 1.1, 1,
        stateful=True, local=True, seconds=0.6,
    ),
    Row(
        "small_recommender_whole", "small_recommender as one module", "recommender_whole", "ms", 1.3, 1,
        stateful=True, local=True, seconds=0.6,
    ),
    Row(
        "small_recommender_pipelined", "its look-ups as arguments", "recommender_pipelined", "ms", 1.5, 1.3,
        over_paused=1.8, stateful=True, local=True, seconds=0.6,
    ),
    _steady_neumf("neumf", "NeuMF, sparse, one module, batch 1024, step=opt", "recommender_whole", bare=True),
    _steady_neumf("neumf_calls", "the same call by call", "recommender_whole_calls", bare=True),
    _steady_neumf("modules_3", "NeuMF, sparse, in three modules, look-ups as arguments", "recommender_pipelined"),
    _steady("transformer", "a small language model of two layers, 28 parameters", "transformer"),
    _steady("lstm", "a small language model with an LSTM", "lstm"),
    _steady("linears", "two linear layers", "linears"),
    Row(
        "small_recommender_2", "small_recommender, 2 trainers on 1 owner together", "recommender", "steps/s", 1.1, 1,
        shape=Shape(trainers=2), stateful=True, local=True, racing=True, seconds=1.0,
    ),
    Row(
        "small_recommender_pipelined_2", "its look-ups as arguments", "recommender_pipelined", "steps/s", 1.5, 1.3,
        shape=Shape(trainers=2), stateful=True, local=True, racing=True, seconds=1.0,
    ),
    _steady_neumf(
        "neumf_2", "steady_neumf by 2 trainers on 1 owner", "recommender_whole", shape=Shape(trainers=2), racing=True
    ),
    Row(
        "replica_sync_2", "10 M parameters, 2 trainers in rounds of Sync", "replica_sync", "steps/s",
        shape=Shape(trainers=2), bytes=40_000_000, stateful=True, local=True, seconds=0.8, gloo=True,
    ),
    Row(
        "replica_small_sync_2", "the same with 10 thousand parameters", "replica_sync", "steps/s",
        shape=Shape(trainers=2), bytes=40_000, stateful=True, local=True, gloo=True,
    ),
    Row(
        "trainers_4", "emb_step, 4 trainers on 1 owner together", "emb_step", "steps/s", 4, 2,
        shape=Shape(trainers=4), stateful=True, local=True, seconds=1.0,
    ),
    Row(
        "owners_2", "emb_step, the table split over 2 owners", "split_step", "steps/s", 3, 1.5,
        shape=Shape(owners=2), stateful=True, local=True, seconds=0.6, baseline="owners_1",
    ),
    Row(
        "table_owners_2", "table_step_uniform, the table on 2 owners", "table_split", "ms",
        shape=Shape(owners=2), stateful=True, local=True, seconds=0.6, baseline="table_owners_1", over_baseline=1,
    ),
    _steady(
        "transformer_large", "4 layers of 512, on all cores", "transformer_large", steps=40,
        shape=Shape(all_cores=True), large=True,
    ),
    _durable(
        "", "steady_neumf on owners with a data directory", "recommender_whole", "k samples/s",
        steps=400, per_operation=1024, sparse=True,
    ),
    _durable("_10M", "two linear layers of 10 M parameters together, step of SGD", "linears_10M", steps=40),
    _durable("_table", "table_step_uniform", "table_step", steps=40),
    Row("tls_4B", "echo_4B", "echo", "us", shape=Shape(tls=True), bytes=4, over_plain=1.4),
    Row("tls_16MiB", "echo_16MiB", "echo", "ms", shape=Shape(tls=True), bytes=16 * MIB),
    Row(
        "tls_neumf", "steady_neumf", "recommender_whole", "k samples/s", shape=Shape(tls=True), per_operation=1024,
        stateful=True, local=True, sparse=True, over_plain=1.1,
    ),
)  # fmt: skip

BASELINES: Final = (
    Row(
        "owners_1", "emb_step on 1 owner", "emb_step", "steps/s",
        shape=Shape(owners=2), stateful=True, local=True, seconds=0.6,
    ),
    Row("table_seen", "the same of ids that have rows", "table_seen", "ms", seconds=0.2, ours_only=True),
    Row(
        "tables_1", "the same ids in one table, whose rows are those of all", "tables", "ms",
        stateful=True, local=True,
    ),
    Row(
        "table_owners_1", "table_step_uniform on 1 owner", "table_step", "ms",
        shape=Shape(owners=2), stateful=True, local=True, seconds=0.6,
    ),
)  # fmt: skip
"""Rows that only serve as a baseline of others."""

PEERS: Final = (
    Row("emb_step_whole", "emb_step with the loss on the owner", "emb_step_whole", "ms", stateful=True, local=True),
    Row("emb_forward_zipf", "emb_forward with ids by Zipf's law", "emb_forward", "ms", local=True, zipf=True),
    Row("emb_step_zipf", "emb_step with ids by Zipf's law", "emb_step", "ms", stateful=True, local=True, zipf=True),
    Row(
        "convnet_step_overlapped", "convnet_step with two passes in flight, channels last", "convnet_overlapped", "ms",
        stateful=True, local=True, racing=True, tolerance=0.2, seconds=0.6,
    ),
    Row("linears_step", "two linear layers, batch 32, full step", "linears", "us", stateful=True, local=True),
    Row("linears_step_whole", "the same with the loss on the owner", "linears_whole", "us", stateful=True, local=True),
)  # fmt: skip
"""Rows that only the comparison with other libraries has."""


def row_named(name: str) -> Row:
    """The row of that name.

    Raises:
        KeyError: There is no such row.
    """
    return {row.name: row for row in (*ROWS, *BASELINES, *PEERS)}[name]


def choose(words: Sequence[str], rows: Sequence[Row] = ROWS, skipped: Sequence[str] = ()) -> list[Row]:
    """The rows of some whose names contain one of the words, or all without words; none that contains a skipped word.

    Raises:
        ValueError: There is no such row.
    """
    left = [row for row in rows if not any(word in row.name for word in skipped)]
    chosen = [row for row in left if not words or any(word in row.name for word in words)]
    if not chosen:
        raise ValueError(f"no row's name contains {' or '.join(words)}; there are {', '.join(r.name for r in left)}")
    return chosen
