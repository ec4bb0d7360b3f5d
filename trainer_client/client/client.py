"""Client: a trainer's view of one or more owners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from ps_wire.codec.names import name_of
from ps_wire.codec.payload import PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.errors import InvalidArgumentError, UnknownNameError
from ps_wire.refs import ContextId, Ref, new_trainer_id
from ps_wire.runtime import forks
from ps_wire.v1.frames_pb2 import Reply, Request
from ps_wire.v1.operations_pb2 import (
    AttachRequest,
    CreateRequest,
    DeleteRequest,
    LookupRequest,
    StatusReply,
    StatusRequest,
)
from trainer_client.contexts.context import Context
from trainer_client.graph.current import current_context
from trainer_client.graph.open_contexts import Openings
from trainer_client.handles import calls
from trainer_client.handles.freezing import set_everywhere
from trainer_client.handles.handles import RemoteModule, RemoteObject, handle_from
from trainer_client.handles.other_owners import OtherOwners
from trainer_client.optimizers import optimizer, scheduler
from trainer_client.pending import DEFAULT, Pending
from trainer_client.session.in_flight import nothing
from trainer_client.session.session import Session

if TYPE_CHECKING:
    from ps_wire.codec.payload import PayloadReader
    from ps_wire.connections.connection import Connector
    from trainer_client.handles.parameters import RemoteParameter
    from trainer_client.handles.references import RRef
    from trainer_client.optimizers.optimizer import DistributedOptimizer, NonFinite, Reads
    from trainer_client.optimizers.scheduler import DistributedScheduler
    from trainer_client.session.settings import Settings


class Client:
    """Creates objects on owners, attaches to them, and opens contexts. Made by `connect`.

    Every operation returns a `Pending`: await it, or `wait()` for it in a plain thread.

    Args:
        connectors: One per owner.
        settings: How patient to be.
        dial: Gives a connector for an address, to reach owners that others speak of; without it there are no others.

    Attributes:
        trainer: Its 16 random bytes.
        others: Owners that it comes to know.
    """

    def __init__(
        self, connectors: Sequence[Connector], settings: Settings, dial: Callable[[str], Connector] | None = None
    ) -> None:
        self.trainer = new_trainer_id()
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, Session] = {}
        self.others = OtherOwners(self.trainer, settings, self._sessions, dial)
        self._opening = [Session(each, self.trainer, settings, self.others) for each in connectors]
        self._patience = settings.connect_timeout
        self._openings = Openings()
        self._seeding = settings.seeding

    async def open(self, names: Sequence[str] = ()) -> None:
        """Connects to every owner.

        Args:
            names: Owners to find beside those that connectors lead to: the first of these keeps the directory.

        Raises:
            UnavailableError: One cannot be reached in time.
            UnknownNameError: One has not entered the directory in time.
            InvalidArgumentError: Two have the same name.
        """
        try:
            await asyncio.gather(*(session.open() for session in self._opening))
            for session in self._opening:
                if session.owner in self._sessions:
                    raise InvalidArgumentError(
                        f"two of the owners are called {session.owner!r}: start each under its own --name"
                    )
                self._sessions[session.owner] = session
            if names:
                await self._find(names)
        except BaseException:
            await self.close()
            raise

    async def _find(self, names: Sequence[str]) -> None:
        """Connects to owners by their names; they come first from now on, in this order."""
        directory = self.others.directory = self.session()

        async def find(name: str) -> Session:
            if name in self._sessions:
                return self._sessions[name]
            member = await self.others.ask(directory, LookupRequest(name=name, wait_seconds=self._patience))
            return await self.others.reach(name, member.address)

        found = dict(zip(names, await asyncio.gather(*map(find, names)), strict=True))
        found.update((name, session) for name, session in self._sessions.items() if name not in found)
        self._sessions.clear()
        self._sessions.update(found)

    async def close(self) -> None:
        """Leaves every owner; they free what this trainer held. Calling it again, or in a fork, does nothing."""
        if self.is_foreign:
            return
        await self.others.close()
        await asyncio.gather(*(session.close() for session in self._opening))

    @property
    def is_foreign(self) -> bool:
        """Whether a process of which this one is a fork has opened it; then nothing can be asked of it here."""
        return forks.is_foreign(self._loop)

    @property
    def owners(self) -> list[str]:
        """Names of the owners, in the order of their addresses."""
        return list(self._sessions)

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions with the owners that are known, by name."""
        return self._sessions

    def session(self, owner: str = "") -> Session:
        """The session with an owner; with the first, if no name is given.

        Raises:
            UnknownNameError: There is none of that name.
        """
        if not owner:
            return next(iter(self._sessions.values()))
        try:
            return self._sessions[owner]
        except KeyError:
            known = ", ".join(self._sessions)
            raise UnknownNameError(f"this client is not connected to an owner {owner!r}, only to {known}") from None

    def module(
        self,
        cls: type[nn.Module] | str,
        *args: Any,
        name: str = "",
        owner: str = "",
        seed: int | None = None,
        timeout: float | None = DEFAULT,
        **kwargs: Any,
    ) -> Pending[RemoteModule]:
        """Makes a module on an owner, or attaches to the one of that name.

        Args:
            cls: The class, or the name of one, on the owner's allow-list: `torch.nn` or marked `@hosted`.
            args: Its arguments.
            name: A named module is made once; who asks again, with the same arguments, gets the same. Without a name
                it is a new one, and lives while somebody holds a handle.
            owner: Which owner; the first if empty.
            seed: Of the constructor's random numbers: they are those after `torch.manual_seed(seed)`.
            timeout: Seconds this may take.
            kwargs: Its keyword arguments.

        Raises:
            NotAllowedError: The class is not on the allow-list.
            NameConflictError: The name is taken by something made from other arguments.
            RemoteError: The constructor raised.
        """
        return self._create(cls, args, kwargs, name, owner, seed, timeout)

    def create(
        self,
        cls: type | str,
        *args: Any,
        name: str = "",
        owner: str = "",
        seed: int | None = None,
        timeout: float | None = DEFAULT,
        **kwargs: Any,
    ) -> Pending[RemoteObject]:
        """Like `module`, for an instance of any allowed class."""
        return self._create(cls, args, kwargs, name, owner, seed, timeout)

    def attach(self, target: str, owner: str = "") -> Pending[RemoteObject]:
        """A handle to something that exists.

        Args:
            target: A name, or what `str(handle)` gave another trainer.
            owner: Which owner to ask for a name; the first if empty.

        Raises:
            UnknownNameError: There is nothing of that name, or no such owner here.
            StaleHandleError: The handle's object is gone.
        """
        if not target.startswith("ps://"):
            return _attach(self.session(owner), AttachRequest(name=target))
        ref = Ref.parse(target)
        request = AttachRequest(handle=ref.to_message())
        if ref.owner in self._sessions:
            return _attach(self._sessions[ref.owner], request)

        async def attach_there() -> RemoteObject:
            return await _attach(await self.reach(ref.owner), request)

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
            function: One of torch's, or one marked `@remote` in a module that the owner imports; or its name.
            args: Its arguments.
            owner: Which owner; the first if empty.
            timeout: Seconds this may take; None waits for ever.
            kwargs: Its keyword arguments.

        Raises:
            NotAllowedError: The function is not on the allow-list.
            RemoteError: It raised.
        """
        return calls.call(self.session(owner), name_of(function), "", args, kwargs, timeout=timeout)

    def remote(
        self,
        function: Callable[..., Any] | str,
        *args: Any,
        owner: str = "",
        timeout: float | None = DEFAULT,
        **kwargs: Any,
    ) -> Pending[RRef]:
        """Like `call`, but leaves the result on the owner and gives a handle to it."""
        return calls.call(self.session(owner), name_of(function), "", args, kwargs, keep=True, timeout=timeout)

    async def reach(self, owner: str) -> Session:
        """The session with an owner of that name, which may be opened now: the owners known here tell where it is.

        Raises:
            UnknownNameError: Nobody knows it.
            UnavailableError: It cannot be reached in time.
        """
        return await self.others.reach(owner)

    def delete(self, name: str, owner: str = "") -> Pending[None]:
        """Removes a named object and the optimizers of its parameters; handles to it become stale.

        Raises:
            UnknownNameError: There is nothing of that name.
        """
        return self.session(owner).submit(Request(delete=DeleteRequest(name=name)), None, nothing)

    def optimizer(
        self,
        cls: type[optim.Optimizer] | str,
        parameters: Iterable[RemoteParameter | torch.Tensor | Mapping[str, Any]],
        *,
        name: str = "",
        reads: Reads = "consistent",
        non_finite: NonFinite = "apply",
        **options: Any,
    ) -> Pending[DistributedOptimizer]:
        """Makes an optimizer where the parameters are, or attaches to the one that is there.

        Trainers that ask for the same optimizer of the same named objects share it.

        Args:
            cls: A class of `torch.optim`, or one marked `@hosted`.
            parameters: Handles of remote parameters and local parameters, together, or groups of them as in torch.
            name: Needed for a second optimizer of the same parameters, or of anonymous objects to be shared.
            reads: `consistent`: no forward sees half a step, and open passes keep the numbers they began with.
                `inconsistent`: steps write in place (Hogwild).
            non_finite: `refuse` raises when a gradient holds NaN or infinity, on any owner or here; nothing is changed.
            options: The class's keyword arguments, such as `lr`.

        Raises:
            NameConflictError: There is one for these parameters with another class or other options.
            InvalidArgumentError: The class refuses the options, or there are no parameters.
        """
        listed = list(parameters)
        return Pending.run(self._loop, optimizer.create(cls, listed, options, name, reads, non_finite))

    def scheduler(
        self,
        cls: type[lr_scheduler.LRScheduler] | str,
        optimizer: DistributedOptimizer,
        *args: Any,
        name: str = "",
        **kwargs: Any,
    ) -> Pending[DistributedScheduler]:
        """Makes a learning-rate scheduler beside each part of an optimizer, or attaches to the one that is there.

        Args:
            cls: A class of `torch.optim.lr_scheduler`.
            optimizer: Whose learning rates it sets.
            args: The class's arguments after the optimizer.
            name: Needed for a second scheduler of the same class.
            kwargs: The class's keyword arguments.
        """
        return Pending.run(self._loop, scheduler.create(cls, optimizer, args, kwargs, name))

    def requires_grad_(
        self, handles: Iterable[RemoteModule | RemoteParameter], requires_grad: bool = True
    ) -> Pending[None]:
        """Freezes parameters, or unfreezes them, for everybody and for calls that begin later.

        On each owner all are, or none.

        Args:
            handles: Of parameters, or of modules, which stand for all of theirs.
            requires_grad: Whether they shall be trained.

        Raises:
            InvalidArgumentError: One holds integers, which cannot be trained.
        """
        return Pending.run(self._loop, set_everywhere(list(handles), requires_grad))

    def context(self) -> Context:
        """A new pass: `async with ps.context() as ctx`."""
        id = ContextId(self.trainer, self._openings.number())
        context = Context(id, self._loop, self.reach, self._seeding.branch(), self._openings)
        self._openings.opened(context)
        return context

    def manual_seed(self, seed: int | None) -> None:
        """Seeds the random numbers that owners draw for this trainer from now on.

        Each call gets a seed of its own, which follows from this one and its place: its number among the calls of its
        context, and the context's among those opened since; or its number among the calls outside of contexts. So they
        are the same in every run, whatever other trainers do meanwhile. This process's own generators are not touched.

        Args:
            seed: Any integer; None leaves the calls from now on to the owners' own generators.
        """
        self._seeding.begin(seed)

    def status(self, owner: str = "") -> Pending[StatusReply]:
        """What an owner hosts and does."""
        return self.session(owner).submit(Request(status=StatusRequest()), None, lambda reply, _: reply.status)

    def _create(
        self,
        cls: type | str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        name: str,
        owner: str,
        seed: int | None,
        timeout: float | None,
    ) -> Pending[Any]:
        session = self.session(owner)
        payload = PayloadWriter()
        context = current_context()
        handles: list[RRef] = []
        encoder = Encoder(payload, partial(calls.handle_met, handles, context))
        default_seed = self._seeding.next(context.seeds if context is not None else None)
        request = CreateRequest(class_name=name_of(cls), name=name, seed=seed, default_seed=default_seed)
        encoder.encode_into(request.args, args)
        encoder.encode_into(request.kwargs, dict(sorted(kwargs.items())))
        # Handles among the arguments must not be given back before the object was made.
        read = partial(_created, session, (args, kwargs, handles))
        return session.submit(Request(create=request), payload, read, timeout)

    def __repr__(self) -> str:
        return f"<Client of {', '.join(repr(session) for session in self._opening)}>"


def _created(session: Session, held: tuple[object, ...], reply: Reply, payload: PayloadReader) -> RemoteObject:
    return handle_from(session, reply.create.object)


def _attach(session: Session, request: AttachRequest) -> Pending[RemoteObject]:
    return session.submit(Request(attach=request), None, lambda reply, _: handle_from(session, reply.attach.object))
