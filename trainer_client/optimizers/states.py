"""The parts of an optimizer on owners and in this process: their options, states, and the values reported to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakSet

from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.threads import BLOCKING
from trainer_client.contexts.closing import Part, Stepping
from trainer_client.handles import hints
from trainer_client.optimizers.left_owners import LeftOwners
from trainer_client.optimizers.results import all_of
from trainer_client.optimizers.scaling import PushScaling
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from ps_wire.policies import Policy
    from ps_wire.reported import Reported
    from trainer_client.contexts.context import Context
    from trainer_client.handles.handles import RemoteObject
    from trainer_client.optimizers.layout import Layout
    from trainer_client.optimizers.parts import LocalOptimizer, RemoteOptimizer
    from trainer_client.optimizers.replies import ReportedValues
    from trainer_client.session.in_flight import InFlightRequest, Read
    from trainer_client.session.session import Session
    from trainer_client.session.stepped import Stepped

T = TypeVar("T")

Change = Callable[[], Coroutine[Any, Any, T]]


class OptimizerParts(Stepping, PushScaling):
    """An optimizer over several owners, without its steps on owners.

    Attributes:
        policy: The policy that this client has given it last; None if it has given none, though others may have.
    """

    def __init__(
        self,
        remotes: dict[str, RemoteOptimizer],
        local: LocalOptimizer | None,
        layout: Layout,
        left: LeftOwners | None = None,
    ) -> None:
        self.remotes = remotes
        self.remote_parts = remotes.values()
        self.local = local
        self.policy: Policy | None = None
        # Makes a change of all parts. That of a table first takes up which owners have its rows.
        self.everywhere: Callable[[Change[Any]], Coroutine[Any, Any, Any]] = _at_once
        self.left = left or LeftOwners()
        self.left_owners = (self.left,)
        self.parts: list[Part] = []
        self._layout = layout
        self._note_parts()
        self._loop = self.sessions[0].loop if remotes else asyncio.get_running_loop()

    def __repr__(self) -> str:
        parts = [*map(str, self.remotes.values()), *(["this process"] if self.local else [])]
        what = next((part.title for part in self.remotes.values()), "")
        return f"<DistributedOptimizer {what}on {', '.join(parts)}>"

    if not TYPE_CHECKING:  # a checker of types knows which names there are

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(hints.of_optimizer(name))

    def __ps_objects__(self) -> list[RemoteObject]:
        """The objects on owners that are its parts: see `named_parts`."""
        return [part.handle for part in self.remotes.values()]

    @property
    def sessions(self) -> list[Session]:
        """The sessions with the owners of its parts."""
        return [part.session for part in self.remotes.values()]

    @property
    def _prepares(self) -> bool:
        """Whether owners keep the gradients before one steps: so that all do, also if one is killed between."""
        return len(self.remotes) > 1 and any(each.session.prepares for each in self.remotes.values())

    def check_pass(self, context: Context) -> None:
        """Raises the errors of a pass that is not open on its owners, or belongs to another client."""
        context.check(*[part.session for part in self.remotes.values()])

    def check_local_part(self, context: Context) -> None:
        """Raises the error that the step of the parameters of this process would raise before it changes anything."""
        if self.local is not None:
            self.local.check(context)

    async def step_local_part(self, context: Context) -> None:
        """Steps the parameters of this process, after the part on an owner has stepped."""
        if self.local is not None and not self.local.step_now(context):
            await BLOCKING.run(self.local.step, context)

    def apply_local_part(self, context: Context) -> None:
        """Like `step_local_part`, in this thread, which must not be that of the client's event loop."""
        if self.local is not None:
            self.local.step(context)

    def _no_local_part(self) -> None:
        if self.local is not None or not self.remotes:
            raise InvalidArgumentError(
                f"an optimizer with a policy has all of its parameters on owners, and none here; this is {self!r}"
            )

    def _steps_on(
        self, owners: Iterable[str], context: Context, read: Read[T], values: Mapping[str, Reported], **how: Any
    ) -> dict[str, InFlightRequest[T]]:
        """Asks for the steps of parts, as `RemoteOptimizer.step`. Values go with that on the first owner by name."""
        first = min(self.remotes, default="")
        return {
            name: self.remotes[name].step(context, read, values=values if name == first else None, **how)
            for name in owners
        }

    _only: RemoteOptimizer | None
    used_by: WeakSet[Any]
    # That of a table takes up which owners have its rows.
    follow: Callable[[], Awaitable[Any]] | None = None

    def part_on(self, session: Session) -> RemoteOptimizer:
        """Its part on one owner. Raises `InvalidArgumentError` if it has another one, or was made by another client."""
        if self._only is None:
            raise InvalidArgumentError(
                f"the push of a replica needs an optimizer whose parameters are all on one owner; this is {self!r}"
            )
        if self._only.session is not session:
            raise InvalidArgumentError(f"{self!r} steps no module that this client has on owner {session.owner!r}")
        return self._only

    def tell_moves(self) -> None:
        """Has itself told when objects of its owners have moved."""
        for part in self.remotes.values():
            part.session.moves.followers.add(self)

    def _note_parts(self) -> None:
        before, self.parts = self.parts, [Part(each.session, each.name, each.mark) for each in self.remotes.values()]
        self.left.change(before, self.parts)

    def take_marks(self, marks: Mapping[str, int]) -> None:
        """Has the marks of owners in the routing of its table, which steps are sent with."""
        for owner, part in self.remotes.items():
            part.mark = marks[owner]
        self._note_parts()
        for each in self.used_by:
            each.look_at_parts()

    async def follow_rows(self) -> None:
        if self.follow is not None:
            await self.follow()

    def objects_moved(self) -> None:
        """Has the parts where they are now, because objects of this client have moved to other owners."""
        names = {}
        for before, part in self.remotes.items():
            part.follow()
            if part.owner != before:
                names[before] = part.owner
        if names:
            self._layout.rename(names)
            self.remotes = {part.owner: part for part in self.remotes.values()}
            self._note_parts()
            self.tell_moves()
            for each in self.used_by:
                each.look_at_parts()

    def set_options(self, group: int | None = None, **options: Any) -> Pending[None]:
        """Changes options such as `lr` on every owner and here.

        Args:
            group: Index of the parameter group; None for all.
            options: The options and their new values.

        Raises:
            InvalidArgumentError: There is no such group or option.
            PsError: An owner failed; others may have changed theirs.
        """
        return Pending.run(self._loop, self.everywhere(partial(self._set_options, group, options)))

    async def _set_options(self, group: int | None, options: Mapping[str, Any]) -> None:
        local, places = self.local, self._layout.places(group)
        here = [place for name, place in places if name == self._layout.LOCAL]
        if local is not None:
            local.check_options(here, options)
        there = [each for each in places if each[0] in self.remotes]
        await all_of({(name, place): self.remotes[name].set_options(place, options) for name, place in there})
        if local is not None:
            for place in here:
                local.optimizer.param_groups[place].update(options)

    def state_dict(self) -> Pending[dict[str, Any]]:
        """The state of all parts, as the `state_dict` of one torch optimizer over the same parameters; on the CPU."""
        return Pending.run(self._loop, self.everywhere(self._collected))

    async def _collected(self) -> dict[str, Any]:
        parts = await all_of({name: part.state_dict() for name, part in self.remotes.items()})
        if self.local is not None:
            parts[self._layout.LOCAL] = self.local.state_dict()
        return self._layout.merge(parts)

    def load_state_dict(self, state: Mapping[str, Any]) -> Pending[None]:
        """Loads the state of a torch optimizer, or of another `DistributedOptimizer`, over the same parameters.

        Raises:
            InvalidArgumentError: It does not fit; nothing was changed on any owner or here.
        """
        return Pending.run(self._loop, self.everywhere(partial(self._load, state)))

    async def _load(self, state: Mapping[str, Any]) -> None:
        parts = self._layout.split(state)
        if self.local is not None:
            self.local.check_state(parts[self._layout.LOCAL])
        before = await all_of({name: part.state_dict() for name, part in self.remotes.items()})
        try:
            await all_of({name: part.load_state_dict(parts[name]) for name, part in self.remotes.items()})
        except InvalidArgumentError:
            # Some parts may have loaded it already.
            await all_of({name: part.load_state_dict(before[name]) for name, part in self.remotes.items()})
            raise
        if self.local is not None:
            self.local.load_state_dict(parts[self._layout.LOCAL])

    def values(self, *, reset: bool = True) -> Pending[ReportedValues]:
        """The values that all trainers have reported with gradients that count, reduced by name.

        These are, under every policy, all since the last reset. Under `Async`, where a round has one gradient, the
        values of trainers meet here. The owner has them in memory only: one that starts again begins anew. Of values
        that are kept, it has those of the 1,024 trainers that reported last, and at most 16 MiB.

        Args:
            reset: Whether the next read, of any trainer, begins anew. Names may then be reduced in another way.

        Raises:
            InvalidArgumentError: All parameters are in this process.
        """
        return self.first_part().values(reset)

    def add_to_curves(self, steps: Iterable[tuple[Stepped, Mapping[str, float]]]) -> Pending[None]:
        """Adds numbers to the curves that the page shows of this optimizer, each for the version of a step.

        They count nowhere else: `values` does not have them. `progress(..., optimizer=)` calls this once a second.

        Args:
            steps: What steps of this optimizer have returned, in their order, and the numbers by name.

        Raises:
            InvalidArgumentError: All parameters are in this process, or a name is empty or longer than 128 characters.
        """
        part = self.first_part()
        # That of a table has its name in the versions of an optimizer over several.
        found = ((stepped.get(part.owner, max(stepped.values(), default=0)), each) for stepped, each in steps)
        return part.add_to_curves(found)

    def first_part(self) -> RemoteOptimizer:
        """The part that counts values: that on the first owner by name."""
        if not self.remotes:
            raise InvalidArgumentError(f"values are reported to an owner, and {self!r} has no parameters on one")
        return self.remotes[min(self.remotes)]


def _at_once(change: Change[T]) -> Coroutine[Any, Any, T]:
    return change()
