"""The workloads of the crash test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import optim

from tests.crash.workloads.ledgers import Ledgers
from tests.crash.workloads.names import Names
from tests.crash.workloads.own import Own
from tests.crash.workloads.quorums import Quorums
from tests.crash.workloads.shared import Shared
from tests.crash.workloads.tables import Tables
from tests.crash.workloads.workload import Workload
from trainer_client.policies import Async

WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {
    "sgd": lambda: Shared("sgd", ["ps0"], optim.SGD, lr=0.05, momentum=0.9),
    "adam": lambda: Shared("adam", ["ps1"], optim.Adam, lr=0.01),
    "spanning": lambda: Shared("spanning", ["ps0", "ps1"], optim.SGD, lr=0.05, momentum=0.5),
    "own": Own,
    "names": Names,
    "ledger": Ledgers,
    "async": lambda: Shared("async", ["ps0"], optim.SGD, policy=Async(), lr=0.05, momentum=0.9),
    "rounds": lambda: Shared("rounds", ["ps0", "ps1"], optim.SGD, policy=Async(), lr=0.05, momentum=0.9),
    "quorum": Quorums,
    "rows": Tables,
}
"""The workloads, by name."""
