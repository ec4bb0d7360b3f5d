"""A table of embeddings that is split over owners, as trainers see it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

from ps_wire.codec.dtypes import to_wire
from ps_wire.errors import InvalidArgumentError, PsError
from ps_wire.runtime.noop import noop
from ps_wire.shown import shown
from ps_wire.tables.names import ROWS
from ps_wire.tables.queries import bags_query, rows_query
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import DeleteRequest
from ps_wire.v1.values_pb2 import TableName
from trainer_client.handles.parameters import RemoteParameter, RowParameter
from trainer_client.pending import DEFAULT, Pending
from trainer_client.tables.changes import Change, Following, Version
from trainer_client.tables.contents import TableContents
from trainer_client.tables.look_ups import look_up
from trainer_client.tables.reading import RowsRead, read
from trainer_client.tables.waiting import WaitingTable

if TYPE_CHECKING:
    from ps_wire.compression.codec import Codec
    from trainer_client.contexts.context import Context
    from trainer_client.handles.handles import RemoteObject
    from trainer_client.session.session import Session
    from trainer_client.session.stepped import Stepped


class Table(TableContents):
    """A handle to a table. Made by `Client.table`.

        items = await ps.table("items", dim=64, optimizer=tc.tables.RowWiseAdagrad(lr=0.05))
        async with ps.context() as ctx:
            rows = await items(ids)
            await ctx.backward(loss(rows), step=items.optimizer)

    Look-ups inside a context are recorded, as calls are. Their gradients are kept in the context, on the owners of the
    rows, until a step of `optimizer` applies them. That is one optimizer, which all trainers share.

    Attributes:
        name: Its name.
        dim: Numbers in a row.
        dtype: Their dtype.
        rows: Number of rows of a table of fixed size; None for one that takes any id.
        row_optimizer: The options that its optimizer was made with.
        routing: Which owner has which rows, as far as this handle knows: rows may move to other owners, and it follows.
        shards: Handles to the rows of each owner, by its name.
        compress: The codecs of the gradients of rows on their way to the owners; None for none.
        optimizer: Its optimizer: step it by itself, together with others, or behind a backward; set its learning rate,
            policy or scheduler as those of any other.
    """

    removed: Callable[[], Coroutine[Any, Any, None]]
    """Removes the table from all owners that its client knows."""

    instead_of_sending: Final = (
        "a table can be an argument of calls and constructors, ps.module(Net, items), whose code looks up in it. A "
        "layer over it cannot: give the table itself, or run the module here, as a replica that gets the layer"
    )
    """What to do where a table is the argument of a call, for messages."""

    @property
    def owners(self) -> list[str]:
        """Names of its owners."""
        return list(self.routing.owners)

    def __call__(self, ids: torch.Tensor, *, timeout: float | None = DEFAULT) -> Pending[torch.Tensor]:
        """The rows of ids. Inside a context, and with grad enabled, the look-up is recorded.

        Each distinct id is sent once, and the gradients of an id that occurs several times are added here. A recorded
        look-up makes the rows of new ids; another one gives the values that they would begin with, and makes none.

        Args:
            ids: int64 or int32 of any shape.
            timeout: Seconds this may take; None is no limit.

        Returns:
            The rows, [*ids.shape, dim], on the CPU.

        Raises:
            InvalidArgumentError: The ids have another dtype, or are outside of a table of fixed size. Nothing was sent.
            TooLargeError: An owner would have more rows than it allows. It has made no row, but others may have.
            StaleHandleError: The table was deleted.
        """
        return look_up(self._loop, [rows_query(self, ids)], timeout, itemgetter(0))

    def bag(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        mode: str = "sum",
        per_sample_weights: torch.Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        timeout: float | None = DEFAULT,
    ) -> Pending[torch.Tensor]:
        """The pooled rows of bags of ids, as `torch.nn.functional.embedding_bag` computes them.

        The owners pool: only the sums travel, and in a backward only their gradients. With several owners the sums of
        each are added here, so the last bits of a result depend on the number of owners. With "max" the distinct rows
        of all bags travel, as for look-ups of rows, and are pooled here: results and gradients have the bits of torch.

        Args:
            ids: int64 or int32, [n] with `offsets`, or [bags, size].
            offsets: Where each bag begins, int64 or int32 [bags].
            mode: "sum", "mean" or "max". That of an empty bag is zero.
            per_sample_weights: Floating point numbers in the shape of the ids, with which rows are multiplied; with
                "sum" only. They get a gradient if they require one.
            include_last_offset: Whether `offsets` has the end of the last bag, too.
            padding_idx: An id that counts for nothing.
            timeout: Seconds this may take; None is no limit.

        Returns:
            float32 [bags, dim], on the CPU.

        Raises:
            InvalidArgumentError: Ids, offsets or weights do not fit. Nothing was sent.
            TooLargeError, StaleHandleError: As for rows.
        """
        query = bags_query(self, ids, offsets, mode, per_sample_weights, include_last_offset, padding_idx)
        return look_up(self._loop, [query], timeout, itemgetter(0))

    def read(
        self, ids: torch.Tensor, *, default: float | torch.Tensor = 0.0, timeout: float | None = DEFAULT
    ) -> Pending[RowsRead]:
        """The rows of ids as they are, for those who serve them. Contexts have nothing to do with it: no row is made,
        no gradient comes back, and neither counters nor ages and sightings of rows change.

        Args:
            ids: int64 or int32 of any shape.
            default: What ids without a row have: a number, or a row [dim].
            timeout: Seconds this may take; None is no limit.

        Raises:
            InvalidArgumentError: The ids have another dtype, or are outside of a table of fixed size; or the default
                is none of these. Nothing was sent.
            StaleHandleError: The table was deleted.
        """
        return read(self._loop, self, ids, default, timeout)

    def changes(
        self, since: Version | None = None, *, every: float = 1.0, compress: Codec | None = None
    ) -> AsyncGenerator[Change, None]:
        """Follows the table: first all rows, or what has changed since a version, and from then on what changes.

            async for change in items.changes():
                ...
                if change.version is not None:
                    save(change.version)

        It ends only with an error, or when it is left. The blocking client has the same with `for`.

        Args:
            since: The version of an earlier `Change`, up to which all changes have been applied; None for all rows. It
                holds after a restart of this program, and of an owner that was drained. If an owner does not know any
                more what has changed since, all rows come again, and the change `resets`.
            every: Seconds between two questions to the owners.
            compress: The codec of the rows on their way: `BF16`, `FP16`, `Int8`, `Zstd` or one of your own; None to get
                their exact bits.

        Raises:
            InvalidArgumentError: An argument does not fit.
            StaleHandleError: The table was deleted.
            SessionLostError: An owner was started again, and knows this client no more: attach to the table again, and
                go on with `since`.
        """
        return self.following(since, every, compress).changes()

    def changes_in_thread(
        self, since: Version | None = None, *, every: float = 1.0, compress: Codec | None = None
    ) -> Iterator[Change]:
        """The same for a plain thread, which waits for each."""
        return self.following(since, every, compress).in_thread()

    def following(self, since: Version | None, every: float, compress: Codec | None = None) -> Following:
        """What gives the changes; arguments and errors as for `changes`."""
        return Following(self._loop, self, since, every, compress)

    def parameters(self) -> list[RemoteParameter]:
        """Handles that stand for all its rows, one for each owner: to clip gradients, or to freeze the table. To freeze
        one of them freezes all rows."""
        return [RowParameter.like(shard.parameter(ROWS), self._present) for shard in self.shards.values()]

    async def _present(self) -> Sequence[RemoteParameter]:
        await self.follower.follow_all()
        return self.parameters()

    def step(self, context: Context) -> Pending[Stepped]:
        """Applies the gradients of a context to this table alone: `optimizer.step(context)`."""
        return self.optimizer.step(context)

    def delete(self) -> Pending[None]:
        """Removes the table and its optimizer from all owners.

        Raises:
            UnknownNameError: An owner does not have it any more.
        """
        return Pending.run(self._loop, self.removed())

    def __ps_table__(self) -> TableName:
        name = TableName(name=self.name, dim=self.dim, dtype=to_wire(self.dtype), owners=self.owners)
        if self.rows is not None:
            name.rows = self.rows
        return name

    def __ps_local__(self) -> WaitingTable:
        return WaitingTable(self)

    def __ps_objects__(self) -> NoReturn:
        raise InvalidArgumentError(f"the rows of {self!r} move with rebalance() and drain()")

    def __repr__(self) -> str:
        kind = "any ids" if self.rows is None else f"{self.rows} rows"
        return f"<Table {self.name!r}, {kind} of {self.dim} {self.dtype}, on {', '.join(self.owners)}>"


def delete_rows(session: Session, name: str) -> Pending[None]:
    """Removes the rows of a table from one of its owners only. Raises `UnknownNameError` if there is none."""
    return session.submit(Request(delete=DeleteRequest(name=name, everywhere=True)), None, noop)


async def undo(made: Iterable[RemoteObject | BaseException]) -> None:
    """Removes what was made on some owners, because others refused."""
    for each in made:
        if not isinstance(each, BaseException) and each.was_made:
            with suppress(PsError):  # another program was faster, or the owner is gone
                await delete_rows(each.session, each.name)


def split(listed: Iterable[Any]) -> tuple[list[Table], list[Any]]:
    """The tables among parameters and groups of parameters, and the rest. Refuses a table in a group, and no list."""
    if isinstance(listed, torch.Tensor) or not isinstance(listed, Iterable):
        raise InvalidArgumentError(
            "an optimizer takes a list of parameters, such as net.parameters(), or of groups of them, "
            f"not {shown(listed)}"
        )
    tables, rest = [], []
    for each in listed:
        if isinstance(each, Table):
            tables.append(each)
            continue
        members = each.get("params", ()) if isinstance(each, Mapping) else ()
        members = members if isinstance(members, (list, tuple)) else [members]
        if any(isinstance(member, Table) for member in members):
            raise InvalidArgumentError(
                "a table has options of its own, so it stands beside groups of parameters, and not inside of one"
            )
        rest.append(each)
    return tables, rest
