"""Results of the parts of an optimizer: all of them, or the first error; and what unscaling has found."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from trainer_client.contexts.context import Context
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


class Unscaled(NamedTuple):
    """The result of unscaling gradients: whether there were any, and whether one of them holds NaN or infinity."""

    present: bool
    non_finite: bool


def unscale_leaves(leaves: Iterable[torch.Tensor], context: Context, factor: float) -> Unscaled:
    """Multiplies a pass's gradients of these leaves. Refuses float16, as a GradScaler does, and changes nothing."""
    found = [(each, gradient) for each in leaves if (gradient := context.gradient(each)) is not None]
    if any(gradient.dtype == torch.float16 for _, gradient in found):
        raise InvalidArgumentError("a GradScaler does not unscale float16 gradients: keep parameters in float32")
    non_finite = not all(is_finite(gradient) for _, gradient in found)
    context.scale([leaf for leaf, _ in found], factor)
    return Unscaled(bool(found), non_finite)


def is_finite(gradient: torch.Tensor) -> bool:
    """Whether a gradient, dense or sparse, holds neither NaN nor infinity."""
    values = gradient._values() if gradient.is_sparse else gradient
    return bool(torch.isfinite(values).all())


async def one_by_one(begin: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """Does one thing after the other, so that what comes first says whether the others begin."""
    for each in begin:
        await each()
