"""PyTorch's parameter server tutorial, on this package: one parameter server and any number of trainers.

Function by function it is the tutorial's program; comments name the differences. In three terminals::

    python -m examples.digits.tutorial --world-size 3 --rank 0
    python -m examples.digits.tutorial --world-size 3 --rank 1
    python -m examples.digits.tutorial --world-size 3 --rank 2
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import trainer_client.autograd as dist_autograd
from examples.digits.data import batches, load_small, shard
from examples.digits.net import Net
from ps_service import hosted, remote
from trainer_client import PsError, rpc
from trainer_client.optim import DistributedOptimizer

Loader = Iterable[tuple[Tensor, Tensor]]
"""Batches of images, ``[<=N, 1, 28, 28]`` float32, and labels, ``[<=N]`` int64."""

BATCH_SIZE = 32


# --------- Helper methods: unlike in the tutorial, functions that others call are marked @remote ---------


@remote
def call_method(method: Callable[..., Any], rref: rpc.RRef, *args: Any, **kwargs: Any) -> Any:
    """Calls a method of a referenced object, on its owner."""
    return method(rref.local_value(), *args, **kwargs)


def remote_method(method: Callable[..., Any], rref: rpc.RRef, *args: Any, **kwargs: Any) -> Any:
    """Calls a method of a referenced object on its owner, and waits for the result."""
    return rpc.rpc_sync(rref.owner(), call_method, args=[method, rref, *args], kwargs=kwargs)


# --------- Parameter server ---------


@hosted
class ParameterServer(nn.Module):
    """The network, which all trainers share."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Net()

    def forward(self, inp: Tensor, training: bool = True) -> Tensor:
        """Classifies digits.

        Args:
            inp: Images, ``[N, 1, 28, 28]`` float32.
            training: Whether to apply dropout. The tutorial always does, also when it measures the accuracy.

        Returns:
            The logarithm of each digit's probability, ``[N, 10]``.
        """
        # Every call runs on a copy of its own: the mode does not affect other calls.
        return self.model.train(training)(inp)

    @remote
    def get_dist_gradients(self, cid: int) -> dict[Tensor, Tensor]:
        """The gradients of a pass for the parameters of this process."""
        return dist_autograd.get_gradients(cid)

    @remote
    def get_param_rrefs(self) -> list[rpc.RRef]:
        """References to the parameters, for a ``DistributedOptimizer``."""
        return [rpc.RRef(param) for param in self.model.parameters()]


param_server: ParameterServer | None = None
global_lock = Lock()


@remote
def get_parameter_server() -> ParameterServer:
    """The parameter server of this process; made when the first trainer asks for it."""
    global param_server
    with global_lock:
        if param_server is None:
            param_server = ParameterServer()
        return param_server


def run_parameter_server(rank: int, world_size: int) -> None:
    """Hosts the model, answers requests, and ends when all trainers have called shutdown."""
    print("PS master initializing RPC")
    rpc.init_rpc(name="parameter_server", rank=rank, world_size=world_size)
    print("RPC initialized! Running parameter server...", flush=True)
    rpc.shutdown()
    print("RPC shutdown on parameter server.")


# --------- Trainers ---------


class TrainerNet(nn.Module):
    """The network in a trainer: its forward calls the network on the parameter server."""

    def __init__(self) -> None:
        super().__init__()
        self.param_server_rref = rpc.remote("parameter_server", get_parameter_server)

    def get_global_param_rrefs(self) -> list[rpc.RRef]:
        """References to the parameters on the parameter server."""
        return remote_method(ParameterServer.get_param_rrefs, self.param_server_rref)

    def forward(self, x: Tensor) -> Tensor:
        """Classifies digits: ``[N, 1, 28, 28]`` to ``[N, 10]``; ``train()`` and ``eval()`` work as they do locally."""
        return remote_method(ParameterServer.forward, self.param_server_rref, x, self.training)


def run_training_loop(rank: int, train_loader: Loader, test_loader: Loader) -> None:
    """Forward, backward and step for every batch, and the accuracy afterwards."""
    net = TrainerNet()
    param_rrefs = net.get_global_param_rrefs()
    opt = DistributedOptimizer(optim.SGD, param_rrefs, lr=0.03)
    for i, (data, target) in enumerate(train_loader):
        with dist_autograd.context() as cid:
            model_output = net(data)
            loss = F.nll_loss(model_output, target)
            if i % 5 == 0:
                print(f"Rank {rank} training batch {i} loss {loss.item()}", flush=True)
            dist_autograd.backward(cid, [loss])
            # Ensure that the parameter server has gradients.
            assert remote_method(ParameterServer.get_dist_gradients, net.param_server_rref, cid) != {}
            opt.step(cid)
    print("Training complete!")
    print("Getting accuracy....")
    get_accuracy(test_loader, net)


def get_accuracy(test_loader: Loader, model: TrainerNet) -> None:
    """Prints the share of held-out digits that are classified correctly."""
    correct_sum, total = 0, 0
    model.eval()
    with torch.no_grad():
        for data, target in test_loader:
            pred = model(data).argmax(dim=1)
            correct_sum += int(pred.eq(target).sum())
            total += len(target)
    print(f"Accuracy {correct_sum / total}", flush=True)


def run_worker(rank: int, world_size: int, train_loader: Loader, test_loader: Loader) -> None:
    """Trains, and ends when all other trainers have finished, too."""
    print(f"Worker rank {rank} initializing RPC")
    rpc.init_rpc(name=f"trainer_{rank}", rank=rank, world_size=world_size)
    print(f"Worker {rank} done initializing RPC", flush=True)
    run_training_loop(rank, train_loader, test_loader)
    rpc.shutdown()


def loaders(rank: int, trainers: int, epochs: int) -> tuple[Loader, Loader]:
    """The training batches of one rank, and the test batches that all ranks share."""
    digits = load_small()
    train_loader = batches(shard(digits.train, rank - 1, trainers), BATCH_SIZE, epochs, seed=rank)
    held_out = digits.held_out
    return train_loader, list(zip(held_out.images.split(128), held_out.labels.split(128), strict=True))


def main(arguments: list[str] | None = None) -> None:
    """Runs the parameter server, as rank 0, or a trainer."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.digits.tutorial", description="Parameter-Server RPC based training"
    )
    # The tutorial spells its options with underscores, which are accepted, too.
    parser.add_argument("--world-size", "--world_size", type=int, default=4, help="the server and all trainers")
    parser.add_argument("--rank", type=int, required=True, help="number of this process; 0 is the server")
    parser.add_argument("--master-addr", "--master_addr", default="localhost", help="where number 0 is reached")
    parser.add_argument("--master-port", "--master_port", default="29500", help="the port on which it listens")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the digits")
    args = parser.parse_args(arguments)
    os.environ["MASTER_ADDR"] = args.master_addr
    os.environ["MASTER_PORT"] = args.master_port
    if args.rank == 0:
        run_parameter_server(0, args.world_size)
    else:
        run_worker(args.rank, args.world_size, *loaders(args.rank, args.world_size - 1, args.epochs))


if __name__ == "__main__":
    try:
        main()
    except (PsError, OSError) as error:
        sys.exit(str(error))
