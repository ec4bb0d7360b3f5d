"""The owner: a long-lived service that hosts models and the optimizers that train them.

A module with hosted classes needs only this import:

    from ps_service import RRef, hosted, remote
"""

from ps_service.hosting.references import RRef
from ps_wire.codec.records import by_value
from ps_wire.compression.registry import register_codec
from ps_wire.decorators import async_execution, hosted, remote

__all__ = ["RRef", "async_execution", "by_value", "hosted", "register_codec", "remote"]
