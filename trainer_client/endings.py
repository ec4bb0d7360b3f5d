"""How several operations have ended, for one that waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_wire.runtime.failures import FailedBeforeError, Failure
from trainer_client.pending import all_ended

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from trainer_client.pending import Pending


def wait_here(loop: asyncio.AbstractEventLoop, parts: Sequence[Pending[Any]]) -> None:
    """Waits until all have ended, in a plain thread. Raises as `check_succeeded`."""
    all_ended(loop, parts).wait()
    check_succeeded(parts)


def check_succeeded(parts: Iterable[Pending[Any]]) -> None:
    """Raises the error of the first that has failed, all being done: `FailedBeforeError` if it was not read."""
    for part in parts:
        if (failure := part.failure) is not None:
            raise FailedBeforeError(failure)
        part.result()


def first_failure(posts: Iterable[Pending[Any]]) -> Failure | None:
    """Waits for every post, so that no request of the backward is left running, and returns the first failure: that of
    the request, of which the failures of those that follow it say that it is their cause, if it is not read."""
    first = None
    for post in posts:
        # As `failure` tells it, without the cost of a call.
        failure = post._outcome if type(post._outcome) is Failure else None
        if failure is None:
            try:
                post.result() if post.settled else post.wait()
            except Exception as error:
                failure = Failure(error)
        first = first or failure
    return first
