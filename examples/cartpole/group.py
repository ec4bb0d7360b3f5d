"""Starts the group of an agent and its observers, together or one member by hand."""

from __future__ import annotations

import torch
from torch import multiprocessing

from examples.cartpole.report import Report
from examples.cartpole.settings import Settings
from examples.cartpole.training import train
from examples.members import gather, serve
from examples.shielded import shielded
from trainer_client import rpc
from trainer_client.rpc.current import has_agent

AGENT = "agent"
OFFERS = ("examples.cartpole.agent", "examples.cartpole.observer")


def observer_names(count: int) -> list[str]:
    """The names of the observers of a group, by rank from 1."""
    return [f"observer{rank}" for rank in range(1, count + 1)]


def run_together(settings: Settings) -> Report:
    """Makes this process the agent, and starts the observers as processes; they have ended afterwards.

    Raises:
        PsError: An observer failed, or did not join in time.
    """
    names = observer_names(settings.observers)
    rpc.init_rpc(AGENT, rank=0, directory="self", allow=OFFERS)
    with shielded():
        started = multiprocessing.spawn(
            _observe, args=(names, rpc.address()), nprocs=settings.observers, join=False, daemon=True
        )
    try:
        gather([AGENT, *names])
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
    """Makes this process one member, as in torch: rank 0 is the agent, and all others connect to its address.

    Returns:
        The report of the agent; None for an observer.

    Raises:
        PsError: Another member failed, or did not join in time.
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
    # Observers wait here for calls of the agent.
    rpc.shutdown()
    return report


def _observe(index: int, names: list[str], directory: str) -> None:
    """The process of an observer: joins the group and waits for calls."""
    torch.set_num_threads(1)
    rpc.init_rpc(names[index], rank=index + 1, directory=directory, allow=OFFERS)
    gather([AGENT, *names])
    serve([AGENT, *names])
