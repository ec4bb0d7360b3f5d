"""Results of the parts of an optimizer: all of them, or the first error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer_client.pending import Pending


async def all_of(pending: Mapping[str, Pending[Any]]) -> dict[str, Any]:
    """Waits for all of them, then returns the results or raises the first error."""
    results = await asyncio.gather(*pending.values(), return_exceptions=True)
    return _unless_one_raised(dict(zip(pending, results, strict=True)))


def all_here(pending: Mapping[str, Pending[Any]]) -> dict[str, Any]:
    """Like `all_of`, in a thread."""
    results: dict[str, Any] = {}
    for name, each in pending.items():
        try:
            results[name] = each.wait()
        except Exception as error:
            results[name] = error
    return _unless_one_raised(results)


def _unless_one_raised(results: dict[str, Any]) -> dict[str, Any]:
    for result in results.values():
        if isinstance(result, BaseException):
            raise result
    return results
