"""What runs once the backwards of a pass have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from ps_wire.runtime.nothing import nothing
from trainer_client.pending import Pending, when_all_done

T = TypeVar("T")


async def after(loop: asyncio.AbstractEventLoop, parts: Sequence[Pending[Any]], work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine once all are done. Unlike with `await`, cancelling the task that waits cancels none of them.

    Raises:
        Exception: The error of the first that has failed; the coroutine has not run then.
    """
    try:
        if parts:
            whole: Pending[None] = Pending(loop)
            when_all_done(iter(parts), partial(whole.resolve, nothing))
            await whole
            for part in parts:
                part.passed_on()
    except BaseException:
        work.close()
        raise
    return await work
