"""The method of a client that makes readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import check_seconds, check_whole
from ps_wire.runtime.noop import noop
from trainer_client.handles.handles import RemoteModule
from trainer_client.handles.listed import names
from trainer_client.pending import DEFAULT, Pending
from trainer_client.serving.exporter import Exporter
from trainer_client.serving.live_objects import LiveObjects
from trainer_client.serving.pinned_module import PinnedModule
from trainer_client.serving.pinned_table import PinnedTable
from trainer_client.serving.readers import MOST_IDS, MOST_SAMPLES, ModuleResults, Reader, TableRows
from trainer_client.serving.window import Window
from trainer_client.tables.table import Table

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch

    from ps_reader.layout import Manifest
    from ps_wire.compression.codec import Codec
    from trainer_client.serving.live_objects import Client
    from trainer_client.tables.creation import Tables


class ServingMethods:
    """What a client does for those who serve what is trained."""

    _tables: Tables
    _loop: asyncio.AbstractEventLoop

    def reader(
        self,
        target: Table | RemoteModule | PinnedTable | PinnedModule,
        *,
        window_ms: float = 2.0,
        most: int | None = None,
        default: float | torch.Tensor | None = None,
        timeout: float | None = DEFAULT,
    ) -> Reader[Any]:
        """A reader of a table or a module for many concurrent callers, whose questions it asks together.

        Args:
            target: A table, which it reads as `Table.read`; a module, which it calls as `RemoteModule.read`; or what a
                snapshot has of one. The inputs of a module become one batch along their first sizes, so it has to treat
                samples alone, as models do in evaluation mode; its results may have other last bits then. Where
                results have a tensor without a row for each sample, the inputs of each caller are asked for alone.
            window_ms: Milliseconds for which the first caller waits for others; 0 asks at once.
            most: Ids or samples after which it does not wait any more. None for 65,536 ids or 1,024 samples.
            default: Of a table: what ids without a row have; None for 0.
            timeout: Seconds that a request may take; None is no limit.

        Raises:
            InvalidArgumentError: An argument does not fit.
        """
        check_seconds("window_ms", window_ms)
        if most is not None:
            check_whole("most", most, 1, 1 << 31)
        seconds = window_ms / 1000
        if isinstance(target, Table | PinnedTable):
            rows = TableRows(target, 0.0 if default is None else default, timeout)
            return Reader(Window(self._loop, rows.ask, seconds, most or MOST_IDS), rows.size, repr(target))
        if not isinstance(target, RemoteModule | PinnedModule):
            raise InvalidArgumentError(f"a reader is of a table or of a module, not of {target!r}")
        if default is not None:
            raise InvalidArgumentError("default= is for ids of a table that have no row")
        results = ModuleResults(target, timeout)
        return Reader(Window(self._loop, results.ask, seconds, most or MOST_SAMPLES), results.size, repr(target))

    def export(
        self,
        path: str | Path,
        *,
        tables: str | Table | Sequence[str | Table] | None = None,
        modules: str | RemoteModule | Sequence[str | RemoteModule] | None = None,
        follow: bool = False,
        every: float = 2.0,
        keep: int = 3,
        compress: Codec | None = None,
        parquet: bool = False,
        snapshot: str | None = None,
        when_written: Callable[[Manifest], object] = noop,
    ) -> Pending[None]:
        """Writes tables and modules into a folder, which `ps_reader` reads, as one version. With `follow`, further
        versions follow with what has changed, until it is cancelled; meanwhile it waits for owners that are away.

        The first version has all rows; the others, the rows that have changed since. Where they add up, all rows are
        written anew. It goes on from the newest version that is in the folder.

        Args:
            path: A folder of its own.
            tables: Tables or their names; None for all, if `modules` is None, too: with `follow`, also those that are
                made later.
            modules: Modules or their names, on any owner; None for all that have a name, if `tables` is None, too.
            follow: Whether it goes on.
            every: Seconds from one version to the next.
            keep: How many versions are kept.
            compress: The codec of the rows on their way, which rounds them; None for their exact bits.
            parquet: Whether each part of a table is written as Parquet, too; needs pyarrow.
            snapshot: The name of a snapshot that is written in the place of what there is now.
            when_written: Is called with the manifest of each version.

        Raises:
            InvalidArgumentError: An argument does not fit, the folder has other files, or another program writes into
                it.
            UnknownNameError: There is no such table or module.
            UnavailableError: An owner is not there that has a table or module of the newest version in the folder. With
                `follow` it is waited for.
            ClosedError: An owner was away for longer than `reconnect_timeout`, and this client was told its address
                instead of a directory.
            OSError: A file cannot be written.
        """
        check_seconds("every", every)
        check_whole("keep", keep, 1, 1 << 31)
        if snapshot is not None and follow:
            raise InvalidArgumentError("a snapshot does not change, so there is nothing to follow")
        client = cast("Client", self)
        of_tables, of_modules = (None if each is None else names(each) for each in (tables, modules))

        async def exporting() -> None:
            in_group = self._tables.sessions.in_group
            source = LiveObjects(client, in_group) if snapshot is None else await client.snapshot(snapshot)
            exporter = Exporter(source, path, of_tables, of_modules, every, keep, compress, parquet, when_written)
            await exporter.run(once=not follow)

        return Pending.run(self._loop, exporting())
