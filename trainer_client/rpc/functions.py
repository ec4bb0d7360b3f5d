"""The decorator `async_execution`, under the name that torch has for this module."""

from ps_wire.decorators import async_execution

__all__ = ["async_execution"]
