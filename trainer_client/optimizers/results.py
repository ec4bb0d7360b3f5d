"""Results of the parts of an optimizer: all of them, or the first error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from trainer_client.pending import Pending

K = TypeVar("K")


async def all_of(pending: Mapping[K, Awaitable[Any]]) -> dict[K, Any]:
    """Waits for all of them, then returns the results or raises the first error."""
    results = await asyncio.gather(*pending.values(), return_exceptions=True)
    return _unless_one_raised(dict(zip(pending, results, strict=True)))


def all_here(pending: Mapping[K, Pending[Any]]) -> dict[K, Any]:
    """Like `all_of`, in a thread."""
    results: dict[K, Any] = {}
    for name, each in pending.items():
        try:
            results[name] = each.wait()
        except Exception as error:
            results[name] = error
    return _unless_one_raised(results)


def _unless_one_raised(results: dict[K, Any]) -> dict[K, Any]:
    for result in results.values():
        if isinstance(result, BaseException):
            raise result
    return results
