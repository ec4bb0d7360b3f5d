"""The same training in one process, with plain torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from examples.recommender.ratings.model import MODELS, loss_of
from examples.recommender.ratings.ranking import Ranked, rank
from examples.recommender.ratings.settings import Settings
from examples.recommender.ratings.split import LeaveOneOut
from ps_service.tables.randomness import initial_rows
from ps_wire.tables.options import Normal


class LazyAdam:
    """Adam on the rows that have a gradient; the bias of a row's moments is corrected for its own number of steps.

    `torch.optim.SparseAdam` counts the steps of all rows together, so that a rare row would hardly move.

    Args:
        weight: The rows, with sparse gradients.
        lr: Learning rate.
        betas: Decay of the first and of the second moment.
        eps: Added to the root of the second moment.
    """

    def __init__(
        self, weight: nn.Parameter, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self._weight = weight
        self._lr = lr
        self._betas = betas
        self._eps = eps
        self._moment, self._square = torch.zeros_like(weight), torch.zeros_like(weight)
        self._steps = torch.zeros(len(weight), 1)

    @torch.no_grad()
    def step(self) -> None:
        """Applies the gradient, and forgets it."""
        gradient = self._weight.grad.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        first, second = self._betas
        self._steps[rows] += 1
        self._moment[rows] = self._moment[rows].lerp(values, 1 - first)
        self._square[rows] = self._square[rows].lerp(values.square(), 1 - second)
        moment = self._moment[rows] / (1 - first ** self._steps[rows])
        square = self._square[rows] / (1 - second ** self._steps[rows])
        self._weight[rows] -= self._lr * moment / (square.sqrt() + self._eps)
        self._weight.grad = None


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
        tables = [LazyAdam(each.weight, self._settings.table_lr) for each in (self.users, self.items)]
        dense = torch.optim.Adam(self.dense.parameters(), lr=self._settings.lr)
        together = self._settings.trainers
        for step, batch in enumerate(self._source.batches(), 1):
            loss = loss_of(self.predict(batch.users, batch.items), batch.labels)
            loss.backward()
            for table in tables:
                table.step()
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
