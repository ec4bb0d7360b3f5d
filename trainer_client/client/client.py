"""The client holds a trainer's connections to owners; its methods create, find and list objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from ps_wire.codec.names import name_of
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.vector_functions import settle
from ps_wire.refs import ContextId, Ref, new_trainer_id
from ps_wire.runtime.noop import noop
from ps_wire.status import OwnerStatus
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import AttachRequest, StatusRequest
from trainer_client.client import objects
from trainer_client.client.durability import DurabilityMethods
from trainer_client.client.passes import PassMethods
from trainer_client.client.sessions import Connected, Sessions
from trainer_client.client.training import Makers, TrainingMethods
from trainer_client.collectives.communicator import Communicator, join
from trainer_client.graph.current import Openings
from trainer_client.handles.calls import CallOptions, call
from trainer_client.handles.named import named_parts
from trainer_client.handles.parameters import RemoteParameter, freezable, set_everywhere
from trainer_client.handles.references import RRef
from trainer_client.optimizers import attaching, creation, scheduler
from trainer_client.pending import DEFAULT, Joined, Pending
from trainer_client.replicas.replica import Replicas
from trainer_client.serving.serving_methods import ServingMethods
from trainer_client.serving.snapshots import SnapshotMethods
from trainer_client.tables.creation import Tables
from trainer_client.tables.table import Table
from trainer_client.tables.table_methods import TableMethods

if TYPE_CHECKING:
    from ps_wire.connections.connection import Connector
    from trainer_client.graph.leaves import LocalGradients
    from trainer_client.handles.handles import RemoteModule, RemoteObject
    from trainer_client.optimizers.optimizer import DistributedOptimizer
    from trainer_client.optimizers.scheduler import DistributedScheduler
    from trainer_client.session.settings import Settings


_MAKERS: Final = Makers(
    creation.create,
    scheduler.create,
    scheduler.create_local,
    scheduler.DistributedScheduler,
    attaching.optimizer,
    attaching.scheduler,
)


class Client(PassMethods, Connected, TableMethods, TrainingMethods, DurabilityMethods, ServingMethods, SnapshotMethods):
    """Creates objects on owners, attaches to them, and opens contexts. Made by `connect`.

    Every operation returns a `Pending`: await it, or call `wait()` in a plain thread. Besides the errors listed with
    each operation, all of them raise:

    - `UnavailableError`: The owner is draining.
    - `SessionLostError`: The owner ended the session; ask for the objects again, as `run` does.
    - `DeadlineExceededError`: The answer did not come in time; the owner may have run the request.
    - `ClosedError`: The client is closed.

    Passes keep their gradients for local leaves in the stores that `keep` makes; where it is None, in stores of their
    own.
    """

    def __init__(
        self, connectors: Sequence[Connector], settings: Settings, dial: Callable[[str], Connector] | None = None
    ) -> None:
        settle()
        trainer = new_trainer_id()
        self._openings = Openings()
        settings.last_pass = self._openings.last
        super().__init__(trainer, Sessions(trainer, connectors, settings, dial))
        self._runs = settings.runs
        self._seeding, self._tracing = settings.seeding, settings.tracing
        self._tables = Tables(self._sessions, objects.create_shard, objects.attach_named, creation.create, self._loop)
        self._makers = _MAKERS
        self.keep: Callable[[ContextId], LocalGradients] | None = None

    def module(
        self,
        cls: type[nn.Module] | str,
        *args: Any,
        name: str = "",
        owner: str = "",
        seed: int | None = None,
        replace: bool = False,
        timeout: float | None = DEFAULT,
        **kwargs: Any,
    ) -> Pending[RemoteModule]:
        """Makes a module on an owner, or attaches to the module of that name.

        Args:
            cls: A class of `torch.nn`, or one marked `@hosted` on the owner; or its name on the owner's allow-list.
            args: Arguments of the constructor.
            name: A named module is made once and lives until it is deleted; later calls with the same class and
                arguments attach to it. A module without a name is new, and lives while there are handles to it.
            owner: Name of the owner; empty for the first.
            seed: Seed of the constructor: it draws the numbers that follow `torch.manual_seed(seed)`.
            replace: Whether it takes the place of an object of that name that was made with another class or other
                arguments. That is removed once the new one is made, with the optimizers of its parameters, and handles
                to it become stale. With the same class and arguments it changes nothing: the call attaches, and
                parameters are as they have been trained. To begin anew, `delete` the object first.
            timeout: Seconds this may take; None is no limit.
            kwargs: Keyword arguments of the constructor.

        Returns:
            A handle, in training mode.

        Raises:
            NotAllowedError: The class is not on the allow-list.
            NameConflictError: An object with that name exists and was made with another class or other arguments, and
                `replace` is false.
            TooLargeError: A module of torch would be larger than the owner allows.
            RemoteError: The constructor raised an exception.
            UnknownNameError: The client is not connected to that owner.
        """
        return objects.create(self.session(owner), cls, args, kwargs, name, seed, self._seeding, timeout, replace)

    def create(
        self,
        cls: type | str,
        *args: Any,
        name: str = "",
        owner: str = "",
        seed: int | None = None,
        replace: bool = False,
        timeout: float | None = DEFAULT,
        **kwargs: Any,
    ) -> Pending[RemoteObject]:
        """Makes an instance of any class on the owner's allow-list, or attaches to one; otherwise like `module`."""
        return objects.create(self.session(owner), cls, args, kwargs, name, seed, self._seeding, timeout, replace)

    def attach(self, target: str | RRef, owner: str = "") -> Pending[RemoteObject]:
        """A handle to an object that exists. Optimizers and schedulers are given by `optimizer` and `scheduler`.

        Args:
            target: The name of an object, `str(handle)` of another trainer's handle, or a handle.
            owner: Name of the owner to ask for a name; empty for the first.

        Raises:
            UnknownNameError: There is no object of that name, or the owner cannot be found.
            StaleHandleError: The handle's object no longer exists.
            InvalidArgumentError: `target` begins like a handle and is none, or is neither.
        """
        if not isinstance(target, (str, RRef)):
            raise InvalidArgumentError(f"attach() takes a name or a handle, and not {target!r}")
        if isinstance(target, str) and not Ref.is_in(target):
            return objects.attach(self.session(owner), AttachRequest(name=target))
        ref = Ref.parse(target) if isinstance(target, str) else target.ref
        request = AttachRequest(handle=ref.to_message())
        if ref.owner in self.sessions:
            return objects.attach(self.sessions[ref.owner], request)

        async def attach_there() -> RemoteObject:
            return await objects.attach(await self.others.reach(ref.owner), request)

        return Pending.run(self._loop, attach_there())

    def call(
        self,
        function: Callable[..., Any] | str,
        *args: Any,
        owner: str = "",
        timeout: float | None = DEFAULT,
        **kwargs: Any,
    ) -> Pending[Any]:
        """Calls a function on an owner; inside a context, and with grad enabled, the call is recorded.

        Args:
            function: A listed function of torch, or one marked `@remote` in a module that the owner imports; or its
                name.
            args: Its arguments. Tensors may have any shape and dtype.
            owner: Name of the owner; empty for the first.
            timeout: Seconds this may take; None is no limit.
            kwargs: Its keyword arguments.

        Returns:
            Its result. Tensors are on the CPU.

        Raises:
            NotAllowedError: The function is not on the allow-list.
            InvalidArgumentError: An argument does not fit the function.
            TooLargeError: An argument or the result is larger than the owner allows.
            OverloadedError: This trainer has too many requests or bytes on the owner.
            RemoteError: The function raised an exception.
            ContextEndedError, ContextLostError: The context has ended, or the owner has lost it.
        """
        return call(self.session(owner), name_of(function), "", args, kwargs, CallOptions(timeout=timeout))

    def remote(
        self,
        function: Callable[..., Any] | str,
        *args: Any,
        owner: str = "",
        timeout: float | None = DEFAULT,
        **kwargs: Any,
    ) -> Pending[RRef]:
        """Like `call`, but leaves the result on the owner and returns a handle to it.

        Inside a context, gradients propagate back through every use of the handle in that context.
        """
        return call(self.session(owner), name_of(function), "", args, kwargs, CallOptions(timeout=timeout), keep=True)

    def delete(
        self, target: str | RemoteObject | Table | DistributedOptimizer | DistributedScheduler, owner: str = ""
    ) -> Pending[None]:
        """Removes a named object and the optimizers of its parameters; handles to it become stale.

        A table is removed from all of its owners, whichever of them is asked. So is an optimizer or a scheduler that is
        given itself, and not by its name.

        `with contextlib.suppress(UnknownNameError):` around it lets a program begin anew in every run.

        Args:
            target: The name of the object, or a handle to it.
            owner: Name of the owner that has the object of that name; empty for the first.

        Raises:
            UnknownNameError: There is no object of that name; or it is a table, and this client is not connected to one
                of its owners. Nothing was deleted.
            StaleHandleError: The handle's object no longer exists, though there may be another one of its name.
            InvalidArgumentError: The object has no name: it is freed with its last handle.
        """
        if isinstance(target, str):
            return self._tables.delete(self.session(owner), target)
        if isinstance(target, Table):
            return target.delete()
        deleting = [self._tables.delete(each.session, each.name, each) for each in named_parts(target)]
        return Joined(self._loop, deleting, noop, "delete")

    def requires_grad_(
        self,
        handles: RemoteModule | RemoteParameter | Iterable[RemoteModule | RemoteParameter],
        requires_grad: bool = True,
    ) -> Pending[None]:
        """Freezes or unfreezes parameters, for all trainers and for calls that begin later.

        On each owner either all of them are changed or none. If one owner raises, others may have been changed.

        Args:
            handles: Handles of parameters, or of modules for all of their parameters; or one.
            requires_grad: Whether they are trained.

        Raises:
            InvalidArgumentError: A parameter holds integers, which cannot be trained.
        """
        return Pending.run(self._loop, set_everywhere(freezable(handles), requires_grad))

    def replicas(self, module: nn.Module, *, overlap: int = 0) -> Replicas:
        """A local module with replicas inside, for one optimizer that steps all of them; see `Replicas`."""
        return Replicas(module, self._attempt, overlap)

    def communicator(
        self,
        name: str,
        size: int,
        rank: int | None = None,
        *,
        owner: str = "",
        lost_after: float = 1.0,
        timeout: float | None = DEFAULT,
    ) -> Pending[Communicator]:
        """Joins a communicator: a fixed number of trainers that exchange values through an owner (see `Communicator`).

        It waits until all members have joined. A name can be used again, for another communicator, by those that have
        left it or whose communicator has ended; trainers that join a complete one begin another of that name.

        Args:
            name: Its name on the owner, 1 to 128 characters.
            size: The number of members, which all give. At most 4096.
            rank: The rank of this member; None for one that is free, in the order of joining.
            owner: Name of the owner; empty for the first. All members name the same.
            lost_after: Seconds that a member may be without a connection before it is lost, if others wait for it. The
                largest of all members counts. One whose stream breaks and opens again in this time loses nothing.
            timeout: Seconds to wait for the other members; None is no limit.

        Raises:
            DeadlineExceededError: Not all members came in time; the message tells how many did.
            InvalidArgumentError: The arguments make no sense, or others gave another size.
            NameConflictError: Another member has the rank.
            OverloadedError: This trainer is a member of 256 communicators.
        """
        return join(self.session(owner), name, size, rank, lost_after, timeout)

    def status(self, owner: str = "", *, most: int = 0, events: int = 0, events_after: int = 0) -> Pending[OwnerStatus]:
        """The status of an owner: its trainers, objects, optimizers, passes, counts and memory.

        Args:
            owner: Name of the owner; empty for the first.
            most: Most entries of each of its lists; 0: 1,000. The numbers beside them count all.
            events, events_after: How many of the latest events it holds at most, and only those with larger numbers.
        """
        request = Request(status=StatusRequest(most=most, events=events, events_after=events_after))
        return self.session(owner).submit(request, None, lambda reply, _: OwnerStatus.from_message(reply.status))

    def __repr__(self) -> str:
        return f"<Client of {self._sessions.told()}>"
