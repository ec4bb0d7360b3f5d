"""The same training in one process, with plain torch; shows the AUC of the held-out clicks.

::

    python -m examples.recommender.reference --seed 0
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from examples.plan import Plan
from examples.recommender.auc import auc
from examples.recommender.clicks import CATEGORIES, Clicks
from examples.recommender.criteo import CriteoError
from examples.recommender.model import DIM, Dense, loss_of
from examples.recommender.settings import Settings, Source, parse, source_of
from ps_service.tables.randomness import initial_rows
from ps_wire.tables.options import Normal

TAKES = "half a minute to two minutes"


class Reference:
    """A DLRM with `nn.Embedding` tables. They are as large as needed, because all ids are counted before the training.

    All parameters begin with the values that those on owners begin with. The tables step after each batch. The dense
    part steps once for as many batches as there are trainers, with the mean of their gradients, as under `Sync`.

    Args:
        settings: The settings of the training.
        source: The clicks.
    """

    def __init__(self, settings: Settings, source: Source) -> None:
        self._settings = settings
        self._source = source
        self._known = list(_distinct([*(batch.ids for batch in source.batches()), source.held_out().ids]))
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            self.dense = Dense()
        init = Normal(settings.init_std)
        self.tables = nn.ModuleList(
            nn.Embedding.from_pretrained(
                initial_rows(init, settings.seed + column, known, DIM, torch.float32), freeze=False, sparse=True
            )
            for column, known in enumerate(self._known)
        )

    def predict(self, clicks: Clicks) -> Tensor:
        """The log-odds of clicks, [n]."""
        columns = clicks.ids.T.contiguous()
        places = [torch.searchsorted(known, ids) for known, ids in zip(self._known, columns, strict=True)]
        rows = [table(place) for table, place in zip(self.tables, places, strict=True)]
        logits: Tensor = self.dense(clicks.dense, torch.stack(rows, dim=1))
        return logits

    def train(self) -> Iterator[float]:
        """The loss of each step."""
        tables = torch.optim.Adagrad(self.tables.parameters(), lr=self._settings.table_lr)
        dense = torch.optim.Adam(self.dense.parameters(), lr=self._settings.lr)
        together = self._settings.trainers
        for step, batch in enumerate(self._source.batches(), 1):
            loss = loss_of(self.predict(batch), batch.labels)
            loss.backward()
            # Torch warns of the sparse tensors that its own Adagrad makes, unless this is said.
            with torch.sparse.check_sparse_tensor_invariants(enable=False):
                tables.step()
            tables.zero_grad()
            if step % together == 0 or step == self._source.steps:
                for parameter in self.dense.parameters():
                    parameter.grad /= (step - 1) % together + 1
                dense.step()
                dense.zero_grad()
            yield loss.item()

    def score(self) -> float:
        """The AUC of the held-out clicks."""
        clicks = self._source.held_out()
        with torch.no_grad():
            return auc(clicks.labels, self.predict(clicks))


def _distinct(ids: list[Tensor]) -> Iterator[Tensor]:
    """The ids of each table, without repetitions and ascending."""
    for column in range(CATEGORIES):
        yield torch.cat([each[:, column] for each in ids]).unique()


def main(arguments: list[str] | None = None) -> int:
    """Trains, shows the AUC, and returns the exit code."""
    settings = parse(arguments)
    began = time.monotonic()
    try:
        source = source_of(settings)
        torch.set_num_threads(1)
        print(f"{source.steps} steps with {settings.batch_size} {source.name} each, in this process")
        print(Plan(TAKES), flush=True)
        reference = Reference(settings, source)
        for step, loss in enumerate(reference.train(), 1):
            if step % max(source.steps // 10, 1) == 0:
                print(f"step {step} loss {loss:.4f} AUC {reference.score():.4f}", flush=True)
    except (CriteoError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    rows = sum(len(table.weight) for table in reference.tables)
    print(f"AUC {reference.score():.4f}, {rows:,} rows, {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
