"""Functions: what can be said of functions that others call, under torch's name for this module."""

from ps_wire.decorators import async_execution

__all__ = ["async_execution"]
