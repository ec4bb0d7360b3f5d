"""Embedding tables that are split over owners: their optimizers, first values and lives of rows, and look-ups."""

from ps_wire.tables.lifecycle import AfterSightings, Eviction, WithProbability
from ps_wire.tables.options import (
    FTRL,
    SGD,
    Adagrad,
    Constant,
    LazyAdam,
    Normal,
    PartialRowWiseAdam,
    RowGroup,
    RowWiseAdagrad,
    Uniform,
    Zeros,
)
from trainer_client.contexts.prefetching import LookedUp
from trainer_client.tables.changes import Change
from trainer_client.tables.reading import RowsRead
from trainer_client.tables.schedules import SchedulerWithTables
from trainer_client.tables.table import Table
from trainer_client.tables.together import OptimizerWithTables

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "AfterSightings",
    "Change",
    "Constant",
    "Eviction",
    "LazyAdam",
    "LookedUp",
    "Normal",
    "OptimizerWithTables",
    "PartialRowWiseAdam",
    "RowGroup",
    "RowWiseAdagrad",
    "RowsRead",
    "SchedulerWithTables",
    "Table",
    "Uniform",
    "WithProbability",
    "Zeros",
]
