"""The passes and pushes that trainers may make again, and what was applied of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from ps_wire.errors import ContextEndedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ps_wire.attempts import Applied

_MOST_RUNS: Final = 256
"""The most runs of one trainer that are remembered. A program runs few passes at a time."""

_MOST_TRAINERS: Final = 4096
"""The most trainers whose runs are remembered. They are not forgotten with a session: its end may be why a pass is run
again."""


class AppliedRun(NamedTuple):
    """What was applied of a pass, for a checkpoint: the steps of an optimizer, by its number in this process, as
    `Applied` has them."""

    trainer: bytes
    run: int
    optimizer: int
    versions: Mapping[int, int]


class _OfTrainer:
    """What was applied of the runs of one trainer, by number, in the order in which they came. All with numbers below
    `open_from` are over, as far as this owner knows."""

    __slots__ = ("open_from", "runs")

    def __init__(self) -> None:
        self.runs: OrderedDict[int, Applied] = OrderedDict()
        self.open_from = 0


class Runs:
    """What was applied of passes that may be run again. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[bytes, _OfTrainer] = OrderedDict()

    def of(self, trainer: bytes, run: int, runs_from: int = 0, may_be_over: bool = True) -> Applied:
        """What was applied of a pass; its attempts, which have the number of the run in common, change it. All runs of
        the trainer with numbers below `runs_from` are over. If it is one of these and forgotten, and not `may_be_over`,
        it is a `ContextEndedError`: it is not known any more what was applied."""
        with self._lock:
            known = self._of.setdefault(trainer, _OfTrainer())
            self._of.move_to_end(trainer)
            known.open_from = max(known.open_from, runs_from)
            if run < known.open_from and run not in known.runs and not may_be_over:
                raise ContextEndedError(
                    "the trainer has given this push up, and has made later ones; it does not count"
                )
            applied = known.runs.setdefault(run, {})
            for each in [each for each in known.runs if each < runs_from and each != run]:
                del known.runs[each]
            if len(known.runs) > _MOST_RUNS:
                known.runs.popitem(last=False)
            if len(self._of) > _MOST_TRAINERS:
                self._of.popitem(last=False)
            return applied

    def all(self) -> list[AppliedRun]:
        """All that was applied."""
        with self._lock:
            return [
                AppliedRun(trainer, run, optimizer, dict(versions))
                for trainer, known in self._of.items()
                for run, applied in known.runs.items()
                for optimizer, versions in list(applied.items())
                if isinstance(optimizer, int)
            ]

    def forget(self, these: Iterable[AppliedRun]) -> None:
        """Forgets what `all` has given of some passes, or optimizers."""
        with self._lock:
            for each in these:
                known = self._of.get(each.trainer)
                versions = {} if known is None else known.runs.get(each.run, {}).get(each.optimizer, {})
                for place in each.versions:
                    versions.pop(place, None)

    def restore(self, runs: Iterable[AppliedRun]) -> None:
        """Continues with those of a checkpoint."""
        for each in runs:
            self.of(each.trainer, each.run).setdefault(each.optimizer, {}).update(each.versions)
