"""What a trainer finds in its environment, by the names that `torchrun` and this project use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ps_service.execution.cores import usable_cores
from ps_service.launch.ports import LOOPBACK


def environment_of(
    rank: int,
    trainers: int,
    addresses: Sequence[str],
    master_port: int = 0,
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables of a trainer.

    Args:
        rank: Its number, from 0.
        trainers: How many there are.
        addresses: Where the owners are; the first keeps the directory of their group.
        master_port: A port on which rank 0 may listen, for `torch.distributed`; 0 for none.
        environment: What else there is; None for the variables of this process.
    """
    found = dict(os.environ if environment is None else environment)
    # Threads that wait for others at the end of an operation would take the cores from those that compute.
    found.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // (trainers + len(addresses)))))
    if master_port:
        found |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(master_port)}
    return found | {
        "PS_ADDRESS": ",".join(addresses),
        "PS_DIRECTORY": addresses[0],
        "RANK": str(rank),
        "WORLD_SIZE": str(trainers),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(trainers),
        "PYTHONUNBUFFERED": "1",
    }
