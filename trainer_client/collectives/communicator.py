"""A communicator: trainers that exchange plain values and tensors through an owner, and wait for each other."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

from ps_wire import errors
from ps_wire.codec.payload import PayloadReader, PayloadWriter, joined
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.collectives import KINDS, MOST_MEMBERS, OPERATIONS, Signature, check_plain, check_reducible
from ps_wire.errors import CancelledCallError, InvalidArgumentError, PsError, TooLargeError, UnavailableError
from ps_wire.numbers import check_seconds
from ps_wire.runtime import forks
from ps_wire.runtime.failures import Origin, PassFailures
from ps_wire.runtime.noop import noop
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Frame, Request
from trainer_client.pending import DEFAULT, Pending
from trainer_client.session.stepped import owner_seconds

if TYPE_CHECKING:
    from trainer_client.session.session import Session

T = TypeVar("T")

Op = Literal["sum", "mean", "min", "max", "product"]
"""An operation of `all_reduce`."""

_NUMBERS: Final = itertools.count(1)
"""Numbers of the memberships of this process."""


class Communicator:
    """A fixed number of trainers with ranks, which call the same collectives in the same order.

        async with await ps.communicator("evaluation", size=4) as team:
            losses = await team.all_gather(loss)
            if team.rank == 0:
                print(sum(losses) / team.size)

    Made by `Client.communicator`. Every collective waits until all members have called it. The values are any that can
    be sent: numbers, texts, tensors, containers of these, and instances of `@by_value` classes that all members have
    registered. Sizes and kinds may differ between members. What a member gets are copies, also of its own value. The
    values of one collective may have as many bytes together as one message (`max_message_bytes` of the owner).

    The first failure ends the communicator for all members: one dies or leaves while others wait for it, does not come
    in time, cancels its call, or calls something else than the others. Calls that wait, and all later ones, raise an
    error that names it. The remaining members can make a new communicator, also under the same name.

    Besides the errors listed with each method, all collectives raise:

    - `UnavailableError`: A member is lost, has left, or has given up; or the owner has started again.
    - `DeadlineExceededError`: A member did not come in time. The message names those that are missing.
    - `InvalidArgumentError`: Members have called different collectives with the same number.
    - `TooLargeError`, `OverloadedError`: The values are too large, or the owner holds too many of other collectives.

    Attributes:
        name: Its name.
        rank: The rank of this member, from 0.
        size: The number of members.
    """

    def __init__(self, membership: Membership, name: str, rank: int, size: int) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self._session = membership.session
        self._membership = membership
        self._numbers = itertools.count(1)
        self._ended: PsError | None = None
        # Failures are reported at once. What the exception of a block has brought about is not.
        self._failures = PassFailures()
        self._failures.end()

    def barrier(self, *, timeout: float | None = DEFAULT) -> Pending[None]:
        """Waits until all members have called it.

        Args:
            timeout: Seconds to wait, as in all collectives; None is no limit.
        """
        return self._call(Signature("barrier"), (), timeout, lambda _: None)

    def gather(self, value: Any, to: int = 0, *, timeout: float | None = DEFAULT) -> Pending[list[Any] | None]:
        """Collects a value of each member.

        Args:
            value: The value of this member.
            to: The rank that gets them.
            timeout: As in `barrier`.

        Returns:
            For that rank, the values in the order of ranks; for others None.
        """
        signature = self._rooted("gather", to)
        if to != self.rank:
            return self._call(signature, (value,), timeout, lambda _: None)
        own = _copy(value)
        return self._call(signature, (), timeout, lambda others: self._with_own(own, others))

    def broadcast(self, value: Any = None, source: int = 0, *, timeout: float | None = DEFAULT) -> Pending[Any]:
        """Gives a value of one member to all.

        Args:
            value: The value, at the source; not used at others.
            source: The rank whose value it is.
            timeout: As in `barrier`.

        Returns:
            The value of the source.
        """
        signature = self._rooted("broadcast", source)
        if source != self.rank:
            return self._call(signature, (), timeout, lambda values: values[0])
        own = _copy(value)
        return self._call(signature, (value,), timeout, lambda _: own)

    def scatter(
        self, values: Sequence[Any] | None = None, source: int = 0, *, timeout: float | None = DEFAULT
    ) -> Pending[Any]:
        """Gives each member one of the values of the source.

        Args:
            values: At the source, a value for each member in the order of ranks; not used at others.
            source: The rank whose values they are.
            timeout: As in `barrier`.

        Returns:
            The value for this member.

        Raises:
            InvalidArgumentError: The source has not given as many values as there are members.
        """
        signature = self._rooted("scatter", source)
        if source != self.rank:
            return self._call(signature, (), timeout, lambda received: received[0])
        if not isinstance(values, Sequence) or isinstance(values, (str, bytes)) or len(values) != self.size:
            raise InvalidArgumentError(
                f"the source of a scatter gives a list of {self.size} values, one for each member"
            )
        own = _copy(values[self.rank])
        others = [value for rank, value in enumerate(values) if rank != self.rank]
        return self._call(signature, others, timeout, lambda _: own)

    def all_gather(self, value: Any, *, timeout: float | None = DEFAULT) -> Pending[list[Any]]:
        """Collects a value of each member, for all.

        Args:
            value: The value of this member.
            timeout: As in `barrier`.

        Returns:
            The values in the order of ranks.
        """
        own = _copy(value)
        return self._call(Signature("all_gather"), (value,), timeout, lambda others: self._with_own(own, others))

    def all_reduce(self, value: T, op: Op = "sum", *, timeout: float | None = DEFAULT) -> Pending[T]:
        """Reduces the values of all members to one, which all of them get.

        Args:
            value: A number, a dense tensor, or a list, tuple or dictionary of these. All members give the same
                structure, shapes and dtypes.
            op: `sum`, `mean`, `min`, `max` or `product`. It is applied in the order of ranks, so that the result does
                not depend on who came first. Sums and products of tensors of integers and bools are int64, their means
                float64, and those of 16-bit floating-point tensors float32. NaN spreads.
            timeout: As in `barrier`.

        Returns:
            The result.

        Raises:
            InvalidArgumentError: A value cannot be reduced, or the values of members do not fit together.
        """
        if op not in OPERATIONS:
            raise InvalidArgumentError(f"op is one of {', '.join(OPERATIONS)}, not {op!r}")
        check_reducible(value, op)
        return self._call(Signature("all_reduce", 0, op), (value,), timeout, lambda values: values[0])

    def leave(self) -> Pending[None]:
        """Ends the part of this member. If others wait for it, now or later, they get an error.

        The end of a `with` block leaves, and so do closing the client and dropping the last reference to this object. A
        block that ends by an exception ends the communicator for all members at once.
        """
        return self._leave("")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failures.end(error)
        await self._leave(_why(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failures.end(error)
        self._leave(_why(error)).wait()

    def __repr__(self) -> str:
        ended = ", ended" if self._ended is not None else ""
        return f"<Communicator {self.name!r}, rank {self.rank} of {self.size}{ended}>"

    def _rooted(self, kind: str, root: int) -> Signature:
        if type(root) is not int or not 0 <= root < self.size:
            raise InvalidArgumentError(f"the ranks of {self!r} are 0 to {self.size - 1}, not {root!r}")
        return Signature(kind, root)

    def _with_own(self, own: Any, others: list[Any]) -> list[Any]:
        return [*others[: self.rank], own, *others[self.rank :]]

    def _call(
        self, signature: Signature, values: Sequence[Any], timeout: float | None, read: Callable[[list[Any]], T]
    ) -> Pending[T]:
        """Sends values, and reads those of others. What can be checked is checked before the call has its number."""
        if self._ended is not None:
            raise self._ended
        frame, payload = Frame(), PayloadWriter()
        request = frame.request.collective
        for value in values:
            check_plain(value)
            part = PayloadWriter()
            message = request.pieces.add()
            Encoder(part).encode_into(message.value, value)
            message.offset, message.nbytes = payload.append(part), part.nbytes
        if payload.nbytes > self._session.max_message_bytes:
            raise TooLargeError(
                f"the values of {signature} have {payload.nbytes:,} bytes of tensors; a message to owner "
                f"{self._session.owner!r} may have {self._session.max_message_bytes:,.0f}"
            )
        request.member, request.number = self._membership.number, next(self._numbers)
        request.kind, request.root = KINDS[signature.kind], signature.root
        if signature.op:
            request.reduction = OPERATIONS[signature.op]
        request.wait_seconds = owner_seconds(self._session.settings.seconds(timeout))
        pending: Pending[T] = self._session.submit(
            frame, payload, lambda reply, answer: read(_received(reply.collective, answer)), timeout
        )
        pending.origin = Origin(f"communicator {self.name!r}", signature.kind, self._failures)
        pending.on_done(lambda: self._end_with(pending))
        return pending

    def _end_with(self, pending: Pending[Any]) -> None:
        """A call that has failed here ends the communicator, so that nobody waits for this member."""
        error = pending.error
        if error is None or self._ended is not None:
            return
        self._ended = _consequence(self.name, error)
        self._membership.leave(_why(error))

    def _leave(self, why: str) -> Pending[None]:
        if self._ended is None:
            self._ended = UnavailableError(f"this member has left the communicator {self.name!r}")
            return self._membership.leave(why)
        made: Pending[None] = Pending(self._session.loop)
        made.resolve(lambda: None)
        return made


class Membership:
    """A membership. If it is garbage, nobody will call its collectives any more, and the others must hear of that.

    A program may lose it without a fault of its own: a task is cancelled when the answer to its joining has come.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.number = next(_NUMBERS)
        self._forgotten = weakref.finalize(self, _forgotten, session, self.number)
        self._forgotten.atexit = False

    def leave(self, why: str = "") -> Pending[None]:
        """Ends it, and tells the other members why. Cancelling the result ends only the wait for the owner."""
        self._forgotten.detach()
        request = _leave(self.session, self.number, why)
        done: Pending[None] = Pending(self.session.loop)
        request.on_done(lambda: done.resolve(request.result))
        return done


def _forgotten(session: Session, number: int) -> None:
    """May be called by the garbage collector, in any thread."""
    if not forks.is_foreign(session.loop):
        # The loop may be closed; then the session has ended, and all its memberships with it.
        with suppress(RuntimeError):
            session.loop.call_soon_threadsafe(_leave, session, number, "its program has dropped the communicator")


def _leave(session: Session, number: int, why: str) -> Pending[None]:
    request = pb.LeaveCommunicatorRequest(member=number, why=why)
    return session.submit(Request(leave_communicator=request), None, noop)


def join(
    session: Session, name: str, size: int, rank: int | None, lost_after: float, timeout: float | None
) -> Pending[Communicator]:
    """Joins a communicator; arguments as for `Client.communicator`."""
    if type(name) is not str or type(size) is not int or (rank is not None and type(rank) is not int):
        raise InvalidArgumentError("a communicator has a text as its name, and whole numbers as size and ranks")
    if not 0 < size <= MOST_MEMBERS or not 0 <= (rank or 0) < size:
        raise InvalidArgumentError(
            f"a communicator has 1 to {MOST_MEMBERS} members, and ranks from 0: not {size} and {rank}"
        )
    check_seconds("lost_after", lost_after)
    membership = Membership(session)
    request = pb.JoinCommunicatorRequest(
        member=membership.number, name=name, size=size, rank=rank, patience_seconds=lost_after
    )
    request.wait_seconds = owner_seconds(session.settings.seconds(timeout))
    pending = session.submit(
        Request(join_communicator=request),
        None,
        lambda reply, _: Communicator(membership, name, reply.join_communicator.rank, size),
        timeout,
    )
    pending.origin = Origin(f"communicator {name!r} on owner {session.owner!r}", "join")

    def give_up() -> None:
        if pending.error is not None:
            # Others may have been told that this trainer is a member.
            membership.leave(_why(pending.error))

    pending.on_done(give_up)
    return pending


def _received(reply: pb.CollectiveReply, payload: PayloadReader) -> list[Any]:
    if reply.HasField("reduced"):
        return [Decoder(payload).decode(reply.reduced)]
    return [
        Decoder(PayloadReader(payload.part(piece.offset, piece.nbytes))).decode(piece.value) for piece in reply.pieces
    ]


def _copy(value: Any) -> Any:
    """What a receiver of a value would get."""
    check_plain(value)
    payload = PayloadWriter()
    message = Encoder(payload).encode(value)
    return Decoder(PayloadReader(joined(payload.chunks, payload.nbytes))).decode(message)


def _why(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"[:1000]


def _consequence(name: str, error: BaseException) -> PsError:
    """The error of calls after one that has failed with `error`."""
    if isinstance(error, CancelledCallError) or not isinstance(error, PsError):
        return UnavailableError(
            f"the communicator {name!r} has ended, make it again: a call of this member was cancelled"
        )
    return errors.caused(error, f"an earlier collective of {name!r} has failed")
