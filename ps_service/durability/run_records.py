"""Records of what optimizers have applied of passes that may be run again."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from ps_service.passes.runs import AppliedRun
from ps_service.training.optimizers import HostedOptimizer
from ps_wire.v1 import checkpoint_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ps_service.engine import Engine
    from ps_service.hosting.objects import HostedObject


def runs_of(engine: Engine, hosted: Iterable[HostedObject]) -> Iterator[pb.RunRecord]:
    """The records of the optimizers among these objects."""
    object_ids = {each.value.number: each.ref.object_id for each in hosted if isinstance(each.value, HostedOptimizer)}
    for trainer, run, optimizer, versions in engine.contexts.runs.all():
        if optimizer in object_ids:
            record = pb.RunRecord(trainer=trainer, run=run, object_id=object_ids[optimizer])
            for place, version in sorted(versions.items()):
                record.places.append(place)
                record.versions.append(version)
            yield record


def applied_runs(records: Iterable[pb.RunRecord], hosted: Iterable[HostedObject]) -> Iterator[AppliedRun]:
    """What the records say of the optimizers among these objects. Versions that they do not have are 0."""
    numbers = {each.ref.object_id: each.value.number for each in hosted if isinstance(each.value, HostedOptimizer)}
    for record in records:
        if record.object_id in numbers:
            versions = dict(zip_longest(record.places, record.versions[: len(record.places)], fillvalue=0))
            yield AppliedRun(record.trainer, record.run, numbers[record.object_id], versions)
