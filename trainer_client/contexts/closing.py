"""The steps that follow a backward, and the end of the pass that follows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context as Variables
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ps_wire.errors import CancelledCallError, InvalidArgumentError, RowsMovedError
from ps_wire.reported import Report
from ps_wire.runtime.failures import Failure, Origin
from ps_wire.runtime.noop import noop
from ps_wire.runtime.threads import BLOCKING
from trainer_client.contexts.moved_rows import following_here
from trainer_client.pending import Joined, Pending
from trainer_client.session.step_mistakes import warn_of_another
from trainer_client.session.stepped import Stepped, owner_seconds

if TYPE_CHECKING:
    import asyncio

    from ps_wire.refs import ContextId
    from ps_wire.reported import Reductions, Reported, Values
    from ps_wire.v1.operations_pb2 import BackwardRequest, EndContextRequest
    from ps_wire.v1.values_pb2 import Handle
    from trainer_client.graph.batch import Answer, Batch
    from trainer_client.session.session import Session

_WITHDRAWN: Final = "the step was cancelled before it began"
_NO_VALUES: Final = Report()
_NOTE: Final = "The step raised this. The backward has succeeded, and the context holds its gradients."


class Part(NamedTuple):
    """The part of an optimizer on one owner, and its handle there. That of a table has the mark of its owner in the
    routing that the table's handle knows."""

    session: Session
    name: Handle
    mark: int | None = None


class Stepping(ABC):
    """An optimizer, as far as a backward has to know it. It is joinable if its parts are on one owner, and may step as
    soon as the backward there has succeeded. There is only one then, unless all step or none (`steps_together`), of
    which `merged` makes one result. A local part is stepped by `step_local_part`, or `apply_local_part` in a thread.
    Parts on several owners may check gradients before one steps (`checks_ahead`), if nobody else has to.
    `remote_parts` check and keep the gradients of several that step one after the other. Values go to `first_part`."""

    parts: Sequence[Part]
    left_owners: Sequence[LeftOwners]
    remote_parts: Collection[Any]
    is_joinable: bool
    has_local_part: bool = False
    steps_together: bool = False
    checks_ahead: bool = False
    _loop: asyncio.AbstractEventLoop

    @abstractmethod
    def step(self, context: Any, *, values: Values = None) -> Pending[Any]:
        """Applies the gradients of a context. Gives the versions of the optimizer."""

    @abstractmethod
    def apply(self, context: Any, *, values: Values = None) -> Any:
        """Like `step`, in this thread, which must not be that of the client's event loop."""

    @abstractmethod
    def report(self, values: Values, reduce: Reductions) -> Report:
        """The values of a step, as they are now. Raises as `step` would."""

    @abstractmethod
    def first_part(self) -> Any:
        """The part on an owner that counts values."""

    def confirm_here(self, context: Any) -> None:
        """Raises `ContextLostError` if an owner has lost the pass, and parts have left that owner since. Blocks."""
        for each in self.left_owners:
            each.confirm_here(context)

    @abstractmethod
    def check_local_part(self, context: Any) -> None:
        """Raises the error that the step of parameters of this process would raise before it changes anything."""

    @abstractmethod
    def step_accepted(self, context: Any, values: Mapping[str, Reported]) -> Pending[Any]:
        """Like `step`, once all owners have accepted the gradients and values, and all backwards have ended."""

    @abstractmethod
    async def follow_rows(self) -> None:
        """Takes up which owners have the rows of its tables."""

    def follow_rows_here(self) -> None:
        """The same in this thread, which must not be that of the client's event loop."""
        Pending.run(self._loop, self.follow_rows()).wait()

    def apply_accepted(self, context: Any, values: Mapping[str, Reported]) -> Any:
        """Like `step_accepted`, in this thread, which must not be that of the client's event loop."""
        return self.step_accepted(context, values).wait()


class LeftOwners(Protocol):
    """Owners that parts of an optimizer have left; see there. A context is in it if they have to be asked for it, which
    none is with a number above `last_pass`."""

    last_pass: int

    def __contains__(self, context: Any) -> bool: ...
    def confirm_here(self, context: Any) -> None: ...


class ClosedPass(Protocol):
    """A pass that a step may end: a `Context`."""

    id: ContextId
    stepped: set[str]
    steps: dict[Any, Pending[Any] | None]
    is_told: bool

    def check(self, *sessions: Session) -> None: ...
    def write_end(self, request: EndContextRequest) -> None: ...
    def finish(self, *, told: Session | None = None) -> None: ...


class Closing:
    """Steps optimizers after a backward has succeeded everywhere, and then ends the pass, if it `ends`. The last
    request of the backward asks for it if all is for its owner, there are no values, and no part has left an owner that
    is to be asked before. Otherwise requests of their own follow; and if the backward ends with one request to each
    owner of an optimizer that checks ahead, these ask for the checks. The first optimizer counts the values. Raises
    `InvalidArgumentError` if this is no optimizer, or one of another client, and as `Context.check` and `report`."""

    def __init__(
        self,
        context: ClosedPass,
        step: Stepping | Sequence[Stepping],
        ends: bool,
        values: Values = None,
        reduce: Reductions = "mean",
    ) -> None:
        self._single = isinstance(step, Stepping)
        is_one = self._single or not isinstance(step, Iterable)
        self._optimizers: Sequence[Any] = (step,) if is_one else tuple(step)  # type: ignore[arg-type]
        self._context = context
        self._ends = ends
        self._parts: list[Part] = []
        sessions: list[Session] = []
        joinable, self._together, self._has_local_part, self._has_rows = True, False, False, False
        for optimizer in self._optimizers:
            if not isinstance(optimizer, Stepping):
                raise InvalidArgumentError(
                    f"step takes optimizers made by the client, not a {type(optimizer).__name__}"
                )
            if optimizer in context.steps:
                warn_of_another(context, optimizer)
            joinable = joinable and optimizer.is_joinable
            self._together = self._together or optimizer.steps_together
            self._has_local_part = self._has_local_part or optimizer.has_local_part
            for part in optimizer.parts:
                self._parts.append(part)
                sessions.append(part.session)
                self._has_rows = self._has_rows or part.mark is not None
        if not self._optimizers:
            raise InvalidArgumentError("step takes an optimizer, or a list of at least one")
        self._values = self._optimizers[0].report(values, reduce) if values else _NO_VALUES
        if self._values or (self._together and len(self._optimizers) > 1):
            joinable = False
        context.check(*sessions)
        self.answers: list[Pending[Answer]] = []
        self._is_joinable = joinable and len(set(sessions)) == 1
        # Whether the owner was asked for the steps in the last request of the backward.
        self._is_asked = False
        # What each owner checks.
        self._checks: dict[Session, list[Part]] = {}
        is_alone = not self._is_joinable and len(self._optimizers) == 1
        if is_alone and not self._values and self._optimizers[0].checks_ahead:
            for part in self._parts:
                self._checks.setdefault(part.session, []).append(part)
        self._steps: Pending[Any] | None = None
        self._cancelled = False

    def join(self, batches: Sequence[Batch]) -> None:
        """Asks in the last requests of the backward for the steps and the end, or each owner for a check."""
        if self._cancelled or not batches:
            return
        for optimizer in self._optimizers:
            for left in optimizer.left_owners:
                if self._context.id.number <= left.last_pass and self._context in left:
                    return
        if self._is_joinable:
            if len(batches) > 1 or batches[0].session is not self._parts[0].session:
                return
            request = batches[0].request
            if self._has_rows:
                self._write_marks(request, self._parts)
            for part in self._parts:
                request.steps.add().CopyFrom(part.name)
                self._context.stepped.add(part.name.object_id)
            request.together = self._together
            request.wait_seconds = owner_seconds(self._parts[0].session.settings.timeout)
            if self._ends:
                self._context.write_end(request.end)
            self._is_asked = True
        elif len(batches) == len(self._checks) and self._checks.keys() == {each.session for each in batches}:
            for batch in batches:
                parts = self._checks[batch.session]
                batch.request.checks.extend([part.name for part in parts])
                if self._has_rows:
                    self._write_marks(batch.request, parts)
        else:
            return
        for batch in batches:
            batch.follow = self

    @staticmethod
    def _write_marks(request: BackwardRequest, parts: Sequence[Part]) -> None:
        request.marks.extend([part.mark or 0 for part in parts])

    def _is_refused(self) -> bool:
        """Whether an owner has refused all that was asked of it because rows of tables have moved. Then nothing is
        asked yet."""
        refused = any(isinstance(each.result().step_error, RowsMovedError) for each in self.answers)
        if refused:
            self._is_asked, self.answers = False, []
        return refused

    async def _follow(self) -> None:
        for optimizer in self._optimizers:
            await optimizer.follow_rows()

    def _follow_here(self) -> None:
        for optimizer in self._optimizers:
            optimizer.follow_rows_here()

    def go_on(self, loop: asyncio.AbstractEventLoop, done: Pending[Any], variables: Variables) -> None:
        """Steps, because the backward has succeeded. The result has the versions of the optimizer, or of each."""
        try:
            if self._cancelled:
                raise CancelledCallError(_WITHDRAWN)
            refused = self._has_rows and self._is_refused()
            if not self._is_asked or self._has_local_part:
                steps = self._steps = variables.run(Pending.run, loop, self._step(refused))
                steps.origin = Origin("a pass", "backward with a step")
                steps.on_done(lambda: done.resolve(steps.result))
                return
            result = self._end(*self._stepped())
        except BaseException as error:
            done.resolve(Failure(error))
        else:
            done.resolve(result=result)

    async def _step(self, refused: bool) -> Any:
        if refused:
            await self._follow()
        if self._is_asked:
            versions, error = self._stepped()
            for optimizer in self._optimizers[: len(versions)]:
                if optimizer.has_local_part:
                    await optimizer.step_local_part(self._context)
            return self._end(versions, error)
        versions = []
        with _explained():
            accepted = await BLOCKING.run(self._prepared) if self._prepares else self._are_accepted()
        for optimizer, values in self._each():
            if self._cancelled:
                raise CancelledCallError(_WITHDRAWN)
            with _explained():
                if accepted:
                    step = optimizer.step_accepted(self._context, values)
                else:
                    step = optimizer.step(self._context, values=values)
                versions.append(await step)
        return self._end(versions)

    def finish(self) -> Any:
        """Steps, in this thread, which must not be that of the client's event loop; returns what `go_on` gives."""
        if self._has_rows and self._is_refused():
            self._follow_here()
        if self._is_asked:
            versions, error = self._stepped()
            for optimizer in self._optimizers[: len(versions)]:
                if optimizer.has_local_part:
                    optimizer.apply_local_part(self._context)
            return self._end(versions, error)
        with _explained():
            accepted = self._prepared() if self._prepares else self._are_accepted()
            versions = [
                optimizer.apply_accepted(self._context, values)
                if accepted
                else optimizer.apply(self._context, values=values)
                for optimizer, values in self._each()
            ]
        return self._end(versions)

    def _each(self) -> Iterator[tuple[Any, Report]]:
        """The optimizers, and the values that each counts."""
        return zip_longest(self._optimizers, (self._values,), fillvalue=_NO_VALUES)

    @property
    def _prepares(self) -> bool:
        """Whether owners with a log keep the gradients before the first of several optimizers steps, so that all step
        with those of one attempt of the pass, also if an owner ends between."""
        return len(self._optimizers) > 1 and any(part.session.prepares for part in self._parts)

    def _prepared(self) -> bool:
        return following_here(self._follow_here, self._prepare)

    def _prepare(self) -> bool:
        """Has all owners check the gradients, and those with a log keep them, in a thread that may wait. Returns true;
        raises what the first step would raise before it changes anything."""
        for optimizer in self._optimizers:
            optimizer.confirm_here(self._context)
            optimizer.check_local_part(self._context)
        of_owners: dict[Session, dict[str, Any]] = {}
        for part in chain.from_iterable(optimizer.remote_parts for optimizer in self._optimizers):
            of_owners.setdefault(part.session, {})[part.name.object_id] = part
        asked = []
        for first, *more in (list(parts.values()) for parts in of_owners.values()):
            values = self._values if self._values and first is self._optimizers[0].first_part() else None
            asked.append(first.step(self._context, noop, more=more, prepare=True, values=values))
        return Joined(self._parts[0].session.loop, asked, lambda _: True).wait()

    def _are_accepted(self) -> bool:
        """Whether all owners have accepted the gradients already. Raises the error of the first that refuses them."""
        answers = [each.result() for each in self.answers]
        for each in answers:
            if each.step_error is not None:
                raise each.step_error
        return bool(answers) and all(each.checked for each in answers)

    def _stepped(self) -> tuple[list[Any], Exception | None]:
        """The versions of the optimizers that have stepped on the owner, and the error of the first that has not."""
        _, versions, error, replies, values, _, durable, staleness = self.answers[0].result()
        if error is not None:
            error.add_note(_NOTE)
        owner = self._parts[0].session.owner
        steps = []
        for version, reply, reported, kept in zip_longest(versions, replies, values, durable):
            steps.append(Stepped({owner: version}, reply, reported, None if kept is None else {owner: kept}))
        if not replies:
            for step, missed in zip(steps, staleness, strict=False):
                step.staleness = missed
        if self._together:
            return [] if error is not None else [self._optimizers[0].merged(steps)], error
        return steps, error

    def _end(self, versions: list[Any], error: Exception | None = None) -> Any:
        if error is not None:
            raise error
        if self._ends:
            self._context.finish(told=self._parts[0].session if self._is_asked else None)
        else:
            self._context.steps.update(dict.fromkeys(self._optimizers))
        return versions[0] if self._single else versions

    def cancel(self) -> None:
        """Prevents the steps that have not begun."""
        self._cancelled = True
        for answer in self.answers:
            answer.cancel()
        if self._steps is not None:
            self._steps.cancel()


@contextmanager
def _explained() -> Iterator[None]:
    """Adds a note to the error of a step."""
    try:
        yield
    except Exception as error:
        error.add_note(_NOTE)
        raise
