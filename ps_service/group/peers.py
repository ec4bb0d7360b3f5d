"""How hosted code on this owner reaches other owners.

Who puts an owner and a client together (the command line, `trainer_client.rpc`) gives the engine its peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import torch

from ps_service.hosting.references import RRef
from ps_wire.errors import ForeignHandleError, UnavailableError

if TYPE_CHECKING:
    from ps_service.group.registers import Registers
    from ps_wire.refs import ContextId, Ref
    from ps_wire.tables.queries import Asked, Described, Query
    from ps_wire.v1.operations_pb2 import Member, MembersReply, MembersRequest


class Over(NamedTuple):
    """The contexts of a trainer that have ended: all below `before` (0: not known), except those of `but`."""

    before: int = 0
    but: Sequence[int] = ()


NOTHING_SAID: Final = Over()


class NestedPass(Protocol):
    """The part of a pass that hosted code makes on other owners.

    `root` is an extra input for `autograd.grad`, so that it also propagates through calls whose inputs require no grad.
    """

    root: torch.Tensor

    def calling(self, place: tuple[int, ...]) -> AbstractContextManager[None]:
        """Makes the calls of this thread during a block part of the pass, nested in the calls of these numbers."""

    def propagating(self, retain_graph: bool, backward: int) -> AbstractContextManager[None]:
        """Lets this thread propagate through such calls during a block, which ends when all have answered."""

    def others(self) -> list[str]:
        """Names of the owners that were called."""

    def end(self, over: Over) -> None:
        """Ends the pass on the other owners, and tells them of other contexts that are over. Does not wait for them."""


class TableElsewhere(Protocol):
    """A table with rows on other owners, for code that this process hosts. Its settings are those of `HostedTable`."""

    @property
    def settings(self) -> Mapping[str, Any]: ...

    def look_up(
        self,
        make: Callable[[Described], Query[Any]],
        own: str,
        here: Callable[[Query[Any], Asked], torch.Tensor] | None,
    ) -> torch.Tensor:
        """The result of the query that `make` makes, with the gradients of its pass. `here` answers what is asked of
        this owner, which is `own`, if it has rows. Raises as `TableRef`, and `RowsMovedError`, with nothing asked, if
        `here` does."""


class Foreign(NamedTuple):
    """A handle to another owner's object in an answer. `held` keeps that object alive until the answer is confirmed.

    If it was computed in a pass, `token` stands for it in this owner's autograd graph.
    """

    ref: Ref
    held: Any
    token: torch.Tensor | None


class Peers:
    """How hosted code reaches other owners. This one is alone, in no group; one that has joined has a subclass.

    What asks other owners may block, and raises `UnavailableError` if that is not possible, or no answer comes in time.
    """

    def nested_pass(self, context: ContextId) -> NestedPass | None:
        """Begins a pass's part on other owners; None if there are no other owners."""
        return None

    def local(self, rref: RRef) -> Any:
        """The object that hosted code gets for a handle to an object of this owner."""
        return rref

    def foreign(self, ref: Ref, history: ContextId | None) -> Any:
        """What hosted code gets for a handle to an object of another owner; a `ForeignHandleError` if that is unknown.

        `history` is the pass in which it was computed, if gradients go back through it.
        """
        raise ForeignHandleError(
            f"the handle {ref} belongs to owner {ref.owner!r}, which cannot be found from here: "
            "start this owner with --directory"
        )

    def table(self, name: str, owners: Sequence[str]) -> TableElsewhere:
        """A table by its name with its namespace, of which some of these owners have rows, or have had some. Raises
        `UnknownNameError` if none has."""
        raise UnavailableError("this owner is in no group: start it with --directory")

    def in_pass(self) -> bool:
        """Whether the code that this thread runs has opened a pass of its own, or makes a nested one."""
        return False

    def departing(self, value: Any, context: ContextId | None) -> RRef | Foreign | None:
        """The handle of a value among the results of hosted code; None if the value is no reference."""
        return value if isinstance(value, RRef) else None

    def find(self, name: str, id: int | None, seconds: float) -> Member:
        """Asks the directory for a member, by name or number. Raises `UnknownNameError` if none came in time."""
        raise UnavailableError("this owner keeps its own directory")

    def gathered(self, request: MembersRequest) -> MembersReply:
        """Asks the directory for the members of the group, once there are enough."""
        raise UnavailableError("this owner keeps its own directory")

    async def members(self, seconds: float) -> Sequence[Member]:
        """The members of the group, this owner among them if it has joined."""
        return ()

    async def ask(self, address: str, method: str, request: Any, seconds: float) -> Any:
        """Sends a unary request (`method` such as `Status`) to another member: one that needs no session."""
        raise UnavailableError("this owner is in no group: start it with --directory")

    @property
    def keeps_directory(self) -> bool:
        """Whether this owner's own directory is the one of its group."""
        return True

    @property
    def directory(self) -> str:
        """Address of the owner with the directory of the group; empty if it is this one, or there is no group."""
        return ""

    @property
    def borrowed(self) -> int:
        """Number of other owners' objects that hosted code holds."""
        return 0


class Membership:
    """The group that an owner is a member of, or is `awaited` in, and the peers that hosted code can call there.

    One that has `joined` logs what functions raise, as members do in torch.
    """

    def __init__(self) -> None:
        self.awaited = self.joined = False
        self.peers = Peers()
        # Of a keeper of a directory that has several.
        self.registers: Registers | None = None
        # Whether no other process has taken the data directory, as far as can be told. May block.
        self.has_data_dir: Callable[[], bool] = lambda: True

    def join(self, peers: Peers) -> None:
        """The owner has joined a group with these peers."""
        self.peers = peers
        self.joined, self.awaited = True, False
