"""The method of a client that makes readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer_client.pending import DEFAULT
from trainer_client.serving.readers import Reader, reader

if TYPE_CHECKING:
    import asyncio

    import torch

    from trainer_client.handles.handles import RemoteModule
    from trainer_client.tables.table import Table


class OffersReading:
    """What a client does for those who serve what is trained."""

    _loop: asyncio.AbstractEventLoop

    def reader(
        self,
        target: Table | RemoteModule,
        *,
        window_ms: float = 2.0,
        most: int | None = None,
        default: float | torch.Tensor | None = None,
        timeout: float | None = DEFAULT,
    ) -> Reader[Any]:
        """A reader of a table or a module for many concurrent callers, whose questions it asks together.

        Args:
            target: A table, which it reads as `Table.read`; or a module, which it calls as `RemoteModule.read`. The
                inputs of a module become one batch along their first sizes, so it has to treat samples alone, as models
                do in evaluation mode; its results may have other last bits then.
            window_ms: Milliseconds for which the first caller waits for others; 0 asks at once.
            most: Ids or samples after which it does not wait any more. None for 65,536 ids or 1,024 samples.
            default: Of a table: what ids without a row have; None for 0.
            timeout: Seconds that a request may take; None is no limit.

        Raises:
            InvalidArgumentError: An argument does not fit.
        """
        return reader(self._loop, target, window_ms, most, default, timeout)
