"""Remote experts of hivemind, whose backward also takes the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import hivemind
import torch
import torch.nn.functional as F
from hivemind.moe import ModuleBackend, Server
from hivemind.moe.server import get_experts
from hivemind.utils.tensor_descr import BatchTensorDescriptor
from torch import Tensor, nn

from benchmarks import data
from benchmarks.models import ChannelsLastNet, Net
from benchmarks.peers.serving import run
from benchmarks.rows import Row
from benchmarks.sizes import Sizes
from benchmarks.trainer import Config
from benchmarks.work import Echoes, Forwards, OverlappedSteps, Steps, Work

MOST = 1 << 30
"""Items in a batch; hivemind counts the numbers of an echo as items."""


class Hivemind:
    """The work of the rows through experts that the owner has made when it started.

    Args:
        config: Addresses.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._sizes = config.sizes
        self._dht = hivemind.DHT(initial_peers=[config.owners[0]], start=True, client_mode=True)

    @contextmanager
    def work(self, row: Row) -> Iterator[Work]:
        """The work of a row, for a block."""
        name = {"echo": "echo.0", "emb_forward": "emb_forward.0"}.get(row.kind)
        (expert,) = get_experts(self._dht, [name or f"{row.name.removesuffix('_4')}.0"])
        if expert is None:
            raise ValueError("the owner has no expert for this row")
        match row.kind:
            case "echo":
                yield Echoes(expert, row.bytes)
            case "emb_forward":
                with torch.no_grad():
                    yield Forwards(expert, data.bags(self._sizes, zipf=row.zipf))
            case "emb_step" | "emb_step_whole":
                rank = self._config.rank
                batches = data.bags(self._sizes, rank, self._config.trainers, row.zipf)
                yield Steps(
                    _training(expert, data.bag_loss),
                    batches,
                    lambda: {f"rows {rank}": _rows(expert, batches, self._sizes)},
                )
            case "convnet_step":
                # Its backward draws dropout anew, so only the losses can be compared.
                yield Steps(_training(expert, F.nll_loss), data.images(self._sizes), dict)
            case "convnet_overlapped":
                yield OverlappedSteps(_training(expert, F.nll_loss), data.images(self._sizes), dict)


def _rows(expert: nn.Module, batches: list[data.Batch], sizes: Sizes) -> Tensor:
    # An expert takes bags of the length that it was made for; a bag of twenty times the same id has its row 20 times.
    with torch.no_grad():
        return expert(data.probe_ids(batches).expand(-1, sizes.per_bag).contiguous()) / sizes.per_bag


def _training(expert: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(expert(x), y)
        loss.backward()
        return loss

    return step


def _backend(name: str, module: nn.Module, like: Tensor, lr: float) -> ModuleBackend:
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=lr) if parameters else None
    schema = (BatchTensorDescriptor.from_tensor(like),)
    return ModuleBackend(name, module, optimizer=optimizer, args_schema=schema, max_batch_size=MOST)


def _backends(sizes: Sizes) -> Iterator[ModuleBackend]:
    ids = torch.zeros(2, sizes.per_bag, dtype=torch.int64)
    yield _backend("echo.0", nn.Identity(), torch.zeros(2, dtype=torch.int32), 0.0)
    for name in ("emb_forward", "emb_step", "emb_step_whole", "emb_step_zipf", "trainers"):
        torch.manual_seed(data.MODEL_SEED)
        table = nn.EmbeddingBag(sizes.table_rows, sizes.dim, mode="sum", sparse=True)
        yield _backend(f"{name}.0", table, ids, data.emb_lr("zipf" in name))
    for name, net in (("convnet_step", Net), ("convnet_step_overlapped", ChannelsLastNet)):
        torch.manual_seed(data.MODEL_SEED)
        yield _backend(f"{name}.0", net(), torch.zeros(2, 1, 28, 28), data.CONVNET_LR)


@contextmanager
def owner(arguments: list[str]) -> Iterator[str]:
    """Serves one expert for each row; the arguments are the sizes."""
    dht = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    backends = {backend.name: backend for backend in _backends(Sizes(*map(int, arguments)))}
    server = Server(dht, backends, num_connection_handlers=4, device="cpu")
    server.run_in_background(await_ready=True)
    yield str(dht.get_visible_maddrs()[0])
    server.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    run(owner, Hivemind)
