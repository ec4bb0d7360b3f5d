"""The same training in one process, with plain torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from examples.recommender.ratings.model import MODELS, loss_of
from examples.recommender.ratings.ranking import Ranked, rank
from examples.recommender.ratings.settings import Settings
from examples.recommender.ratings.split import LeaveOneOut
from ps_service.tables.initial import initial_rows
from ps_wire.tables.options import Normal


class Reference:
    """NeuMF or GMF with `nn.Embedding`, for all users and items of the ratings.

    All parameters begin with the values that those on owners begin with. Rows step after each batch. The dense part
    steps once for as many batches as there are trainers, with the mean of their gradients, as under `Sync`.

    Args:
        settings: The settings of the training.
        source: The ratings.
    """

    def __init__(self, settings: Settings, source: LeaveOneOut) -> None:
        self._settings = settings
        self._source = source
        self._known = source.ids
        model = MODELS[settings.model]
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            self.dense = model(settings.factors)
        init, dim = Normal(settings.init_std), model.dim(settings.factors)
        self.users, self.items = (
            nn.Embedding.from_pretrained(
                initial_rows(init, settings.seed + place, known, dim, torch.float32), freeze=False, sparse=True
            )
            for place, known in enumerate(self._known)
        )

    def predict(self, users: Tensor, items: Tensor) -> Tensor:
        """The log-odds of interactions, [n], for ids [n]."""
        places = [torch.searchsorted(known, ids) for known, ids in zip(self._known, (users, items), strict=True)]
        logits: Tensor = self.dense(self.users(places[0]), self.items(places[1]))
        return logits

    def train(self) -> Iterator[float]:
        """The loss of each step."""
        tables = torch.optim.Adagrad([self.users.weight, self.items.weight], lr=self._settings.table_lr)
        dense = torch.optim.Adam(self.dense.parameters(), lr=self._settings.lr)
        together = self._settings.trainers
        for step, batch in enumerate(self._source.batches(), 1):
            loss = loss_of(self.predict(batch.users, batch.items), batch.labels)
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

    def test(self) -> Ranked:
        """Ranks the held-out items."""
        tests = self._source.tests
        users = tests.users.repeat_interleave(tests.items.shape[1])
        with torch.no_grad():
            return rank(self.predict(users, tests.items.flatten()).view(tests.items.shape))
