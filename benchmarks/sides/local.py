"""The side of plain torch, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import data
from benchmarks.data import RNN
from benchmarks.models import Decoder, EmbeddingTable, Net
from benchmarks.rows import Row
from benchmarks.trainer import Config, Wire, serve
from benchmarks.work import Forwards, Steps, Work

Step = Callable[[Tensor, Tensor], Tensor]


class Local:
    """The work of the rows in one process.

    Args:
        config: The dimensions of the work.
    """

    def __init__(self, config: Config) -> None:
        self._sizes = config.sizes

    @contextmanager
    def work(self, row: Row) -> Iterator[Work]:
        """The work of a row, for a block."""
        match row.kind:
            case "emb_forward":
                table = _table(self._sizes.table_rows, self._sizes.dim, data.MODEL_SEED)
                with torch.no_grad():
                    yield Forwards(table, data.bags(self._sizes))
            case "emb_step" | "split_step":
                yield self._bags(row)
            case "convnet_step":
                yield self._convnet()
            case "rnn_step":
                yield self._rnn()
            case kind:
                raise ValueError(f"{kind} means nothing in one process")

    def _bags(self, row: Row) -> Work:
        if row.kind == "split_step":
            half = self._sizes.table_rows // 2
            halves = [_table(half, self._sizes.dim, data.MODEL_SEED + place).weight for place in (0, 1)]
            table = nn.EmbeddingBag.from_pretrained(torch.cat(halves), freeze=False, mode="sum", sparse=True)
        else:
            table = _table(self._sizes.table_rows, self._sizes.dim, data.MODEL_SEED)
        step = _training(lambda ids, wanted: data.bag_loss(table(ids), wanted), table.parameters(), data.EMB_LR)
        trainers = row.shape.trainers
        each = [data.bags(self._sizes, rank, trainers) for rank in range(trainers)]
        # Several trainers' steps, by turns: the order does not matter, see `data.bags`.
        return Steps(
            step,
            [batch for batches in zip(*each, strict=True) for batch in batches],
            lambda: {f"rows {rank}": table(data.probe_ids(each[rank])).detach() for rank in range(trainers)},
        )

    def _convnet(self) -> Work:
        torch.manual_seed(data.MODEL_SEED)
        net = Net()
        step = _training(lambda x, y: F.nll_loss(net(x), y), net.parameters(), data.CONVNET_LR)
        torch.manual_seed(data.OWNER_SEED)
        return Steps(step, data.images(self._sizes), lambda: dict(net.state_dict()))

    def _rnn(self) -> Work:
        torch.manual_seed(data.MODEL_SEED)
        embedding = EmbeddingTable(RNN.ntoken, RNN.ninp, RNN.dropout)
        torch.manual_seed(data.MODEL_SEED + 1)
        decoder = Decoder(RNN.ntoken, RNN.nhid, RNN.dropout)
        torch.manual_seed(data.TRAINER_SEED)
        lstm, hidden = data.lstm()
        owner = _Numbers(data.OWNER_SEED)

        def loss(words: Tensor, wanted: Tensor) -> Tensor:
            nonlocal hidden
            hidden = data.detached(hidden)
            with owner:
                embedded = embedding(words)
            output, hidden = lstm(embedded, hidden)
            with owner:
                decoded = decoder(output)
            return F.cross_entropy(decoded, wanted)

        parameters = [*embedding.parameters(), *decoder.parameters(), *lstm.parameters()]
        state = {"embedding": embedding, "decoder": decoder, "lstm": lstm}
        return Steps(
            _training(loss, parameters, data.RNN_LR),
            data.sentences(self._sizes),
            lambda: {f"{part}.{key}": value for part in state for key, value in state[part].state_dict().items()},
        )


class _Numbers:
    """Draws random numbers like another process, so that dropout here equals dropout on an owner."""

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()

    def __enter__(self) -> None:
        self._own = torch.get_rng_state()
        torch.set_rng_state(self._state)

    def __exit__(self, *_: object) -> None:
        self._state = torch.get_rng_state()
        torch.set_rng_state(self._own)


def _table(rows: int, dim: int, seed: int) -> nn.EmbeddingBag:
    torch.manual_seed(seed)
    return nn.EmbeddingBag(rows, dim, mode="sum", sparse=True)


def _training(loss_of: Step, parameters: object, lr: float) -> Step:
    optimizer = torch.optim.SGD(parameters, lr=lr)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def main() -> None:
    """Serves the harness."""
    wire = Wire()
    serve(wire, Local(Config.read(next(iter(wire)))))


if __name__ == "__main__":
    main()
