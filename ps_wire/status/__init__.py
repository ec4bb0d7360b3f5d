"""The status of an owner, as `Client.status`, `ps-service status --json` and `/status.json` give it.

docs/status.md is made from its docstrings. Fields have the names of `StatusReply` in proto/ps_wire/v1/operations.proto.
"""

from ps_wire.status.owner import OwnerStatus
from ps_wire.status.parts import (
    CommunicatorStatus,
    EventStatus,
    MemberStatus,
    MemoryStatus,
    ObjectStatus,
    OperationStatus,
    OptimizerStatus,
    PassStatus,
    QuotaStatus,
    TableStatus,
    TrainerStatus,
)

__all__ = [
    "CommunicatorStatus",
    "EventStatus",
    "MemberStatus",
    "MemoryStatus",
    "ObjectStatus",
    "OperationStatus",
    "OptimizerStatus",
    "OwnerStatus",
    "PassStatus",
    "QuotaStatus",
    "TableStatus",
    "TrainerStatus",
]
