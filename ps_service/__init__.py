"""The owner: a long-lived service that hosts models and the optimizers that train them.

A module with hosted classes needs only this import:

    from ps_service import RRef, hosted, remote
"""

from __future__ import annotations

import importlib
import typing

import ps_wire  # noqa: F401  (before anybody imports grpc)

if typing.TYPE_CHECKING:
    from ps_service.hosting.references import RRef
    from ps_service.passes.table_refs import TableRef
    from ps_wire.codec.records import by_value
    from ps_wire.compression.registry import register_codec
    from ps_wire.decorators import async_execution, hosted, remote

__all__ = ["RRef", "TableRef", "async_execution", "by_value", "hosted", "register_codec", "remote"]

_HOMES: typing.Final = {
    "RRef": "ps_service.hosting.references",
    "TableRef": "ps_service.passes.table_refs",
    "async_execution": "ps_wire.decorators",
    "by_value": "ps_wire.codec.records",
    "hosted": "ps_wire.decorators",
    "register_codec": "ps_wire.compression.registry",
    "remote": "ps_wire.decorators",
}
"""Where these names are. They are imported when they are used first, because most of them need torch, whose import
takes seconds, and `ps-service inspect` does not."""


def __getattr__(name: str) -> typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
