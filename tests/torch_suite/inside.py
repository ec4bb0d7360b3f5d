"""What torch's tests ask of the inside of torch's agent, where this project has the same fact."""

from __future__ import annotations

from typing import Any

from trainer_client import rpc
from trainer_client.rpc import current


class Agent:
    """Stands for torch's agent, for the one question that a test may ask a group without knowing its agent."""

    def get_worker_infos(self) -> list[rpc.WorkerInfo]:
        return rpc.get_worker_infos()

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"{name} is inside torch's agent")


def get_current_rpc_agent() -> Agent:
    """The agent of this process."""
    current.agent()
    return Agent()


def rref_context_get_debug_info() -> dict[str, str]:
    """Counts of references, under torch's keys and as text, as torch has them."""
    agent = current.agent()
    registry = agent.engine.registry
    return {
        "num_owner_rrefs": str(len(registry)),
        "num_forks": str(registry.references),
        "num_pending_futures": str(sum(not pending.done() for pending in list(agent._outstanding))),
        "num_pending_users": "0",
    }
