"""The group: an agent and its observers, started together or each by hand."""

from __future__ import annotations

import torch
from torch import multiprocessing

from examples.cartpole.report import Report
from examples.cartpole.settings import Settings
from examples.cartpole.training import train
from trainer_client import rpc
from trainer_client.rpc.current import has_agent

AGENT = "agent"
OFFERS = ("examples.cartpole.agent", "examples.cartpole.observer")


def observer_names(count: int) -> list[str]:
    """The observers of a group, by rank from 1."""
    return [f"observer{rank}" for rank in range(1, count + 1)]


def run_together(settings: Settings) -> Report:
    """This process becomes the agent, and starts observers as processes; none of them is left afterwards.

    Raises:
        PsError: An observer failed, or did not come.
    """
    names = observer_names(settings.observers)
    rpc.init_rpc(AGENT, rank=0, allow=OFFERS)
    started = multiprocessing.spawn(
        _observe, args=(names, rpc.address()), nprocs=settings.observers, join=False, daemon=True
    )
    try:
        rpc.barrier([AGENT, *names])
        report = train(settings, names)
        rpc.shutdown(group=[AGENT, *names])
        while not started.join():
            pass
        return report
    except BaseException:
        for process in started.processes:
            process.kill()
        if has_agent():
            rpc.shutdown(graceful=False)
        raise


def run_by_hand(settings: Settings) -> Report | None:
    """This process becomes one member, as in torch: rank 0 is the agent, and all meet at its address.

    Returns:
        What the agent has to report; None from an observer.

    Raises:
        PsError: Another member failed, or did not come.
    """
    assert settings.rank is not None and settings.world_size is not None
    names = observer_names(settings.world_size - 1)
    options = rpc.RpcBackendOptions(init_method=f"tcp://{settings.master_addr}:{settings.master_port}")
    rpc.init_rpc(
        [AGENT, *names][settings.rank],
        rank=settings.rank,
        world_size=settings.world_size,
        rpc_backend_options=options,
        allow=OFFERS,
    )
    report = train(settings, names) if settings.rank == 0 else None
    # Observers wait here for what the agent wants of them.
    rpc.shutdown()
    return report


def _observe(index: int, names: list[str], directory: str) -> None:
    """One observer's process."""
    torch.set_num_threads(1)
    rpc.init_rpc(names[index], rank=index + 1, directory=directory, allow=OFFERS)
    rpc.barrier([AGENT, *names])
    rpc.shutdown(group=[AGENT, *names])
