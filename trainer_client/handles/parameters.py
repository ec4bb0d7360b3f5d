"""Handles to parameters of hosted modules, and whether these require grad."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeVar

import torch

from ps_wire.arguments import check_flag
from ps_wire.codec import dtypes
from ps_wire.errors import InvalidArgumentError
from ps_wire.shown import shown
from ps_wire.v1.frames_pb2 import Request
from ps_wire.v1.operations_pb2 import ParameterInfo, SetRequiresGradRequest
from trainer_client.handles import hints
from trainer_client.handles.listed import listed
from trainer_client.handles.references import Reference, RRef
from trainer_client.pending import Pending

if TYPE_CHECKING:
    from ps_wire.refs import Ref
    from ps_wire.v1.operations_pb2 import ObjectInfo
    from trainer_client.session.session import Session

T = TypeVar("T")


class Freezable(Protocol):
    """A handle of a parameter or module."""

    @property
    def session(self) -> Session:
        """The session with its owner."""

    @property
    def ref(self) -> Ref:
        """The reference to the parameter or module."""

    def note_requires_grad(self, requires_grad: bool) -> None:
        """Called when the owner has set it."""

    async def now(self) -> Sequence[Freezable]:
        """What is to be set in its place: itself, unless it stands for what can move to other owners."""


def set_requires_grad(handles: Sequence[Freezable], requires_grad: bool, result: T) -> Pending[T]:
    """Freezes or unfreezes parameters of one owner, all or none; then gives `result`."""
    check_flag("requires_grad", requires_grad)
    targets = [handle.ref.to_message() for handle in handles]
    request = Request(set_requires_grad=SetRequiresGradRequest(targets=targets, requires_grad=requires_grad))

    def finish(*_: object) -> T:
        for handle in handles:
            handle.note_requires_grad(requires_grad)
        return result

    return handles[0].session.submit(request, None, finish)


async def set_everywhere(handles: Sequence[Freezable], requires_grad: bool) -> None:
    """Freezes or unfreezes parameters of several owners: on each owner all of them or none."""
    done: set[Ref] = set()
    # Again until nothing has moved meanwhile.
    while left := [each for handle in handles for each in await handle.now() if each.ref not in done]:
        by_session: dict[Session, list[Freezable]] = {}
        for handle in left:
            by_session.setdefault(handle.session, []).append(handle)
        pending = [set_requires_grad(some, requires_grad, None) for some in by_session.values()]
        for each in pending:
            await each
        done.update(each.ref for each in left)


class RemoteParameter(RRef):
    """A handle to one parameter of a module.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        requires_grad: Whether it is trained, as far as this trainer knows: the value that came with the module's
            handle, or the value that was set through one of the two handles since.
    """

    def __init__(
        self,
        session: Session,
        ref: Ref,
        reference: Reference | None,
        shape: torch.Size,
        dtype: torch.dtype,
        info: ParameterInfo | None = None,
        module: ObjectInfo | None = None,
    ) -> None:
        super().__init__(session, ref, reference)
        self.shape = shape
        self.dtype = dtype
        # Shared with the handle to the module.
        self._info = info if info is not None else ParameterInfo(requires_grad=True)
        self._module = module

    @classmethod
    def bare(cls, session: Session, ref: Ref, like: torch.Tensor) -> RemoteParameter:
        """A handle that does not keep the module alive; it has the shape and dtype of a gradient."""
        return cls(session, ref, None, like.shape, like.dtype)

    @classmethod
    def of(
        cls, session: Session, ref: Ref, reference: Reference, info: ParameterInfo, module: ObjectInfo
    ) -> RemoteParameter:
        """One of a module."""
        return cls(
            session,
            ref._replace(parameter=info.name),
            reference,
            torch.Size(info.shape),
            dtypes.from_wire(info.dtype),
            info,
            module,
        )

    if not TYPE_CHECKING:  # a checker of types knows which names there are

        def __getattr__(self, name: str) -> str:
            if name == "__qualname__":  # torch asks for it when it refuses a handle: see `hints`
                return hints.PARAMETER
            raise AttributeError(hints.of_parameter(name))

    @property
    def requires_grad(self) -> bool:
        return self._info.requires_grad

    def requires_grad_(self, requires_grad: bool = True) -> Pending[Self]:
        """Freezes or unfreezes it, for all trainers and for calls that begin later; returns this handle.

        Raises:
            InvalidArgumentError: It holds integers, which cannot be trained.
        """
        return set_requires_grad([self], requires_grad, self)

    def note_requires_grad(self, requires_grad: bool) -> None:
        """Called when it has been frozen or unfrozen."""
        self._info.requires_grad = requires_grad

    async def now(self) -> Sequence[Freezable]:
        return [self]

    @property
    def name(self) -> str:
        """Its dotted name in the module."""
        return self.ref.parameter

    @property
    def ndim(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    def dim(self) -> int:
        """The number of its dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of its elements."""
        return self.shape.numel()

    def element_size(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Its shape, or the size of one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def __ps_objects__(self) -> NoReturn:
        raise InvalidArgumentError(f"{self!r} is a parameter, which moves and is deleted with its module")

    def __str__(self) -> str:
        module = "" if self._module is None else f" of {hints.title(self._module)}"
        return f"{self.name} {list(self.shape)} {self.dtype}{module} on {self.owner} ({self.ref})"

    def __repr__(self) -> str:
        module = "" if self._module is None else f", of {hints.title(self._module)}"
        return f"<RemoteParameter {self.ref} {list(self.shape)} {self.dtype}{module}>"


class RowParameter(RemoteParameter):
    """A handle that stands for the rows of a table on one of its owners. To freeze one freezes the table. `present`
    gives the handles for the owners that have rows now."""

    _present: Callable[[], Awaitable[Sequence[Freezable]]]

    @classmethod
    def like(cls, known: RemoteParameter, present: Callable[[], Awaitable[Sequence[Freezable]]]) -> RowParameter:
        """One in the place of the handle of a parameter."""
        made = cls(known.session, known.ref, known._reference, known.shape, known.dtype, known._info, known._module)
        made._present = present
        return made

    async def now(self) -> Sequence[Freezable]:
        return await self._present()

    def numel(self) -> int:
        raise InvalidArgumentError(
            "the rows of a table come and go, and their number is not that of its shape: `await table.size()` counts "
            "those of all owners, and each has `table.dim` elements"
        )

    def requires_grad_(self, requires_grad: bool = True) -> Pending[Self]:
        """Freezes or unfreezes the rows of the table, on all owners that have some; returns this handle."""

        async def change() -> Self:
            await set_everywhere([self], requires_grad)
            self.note_requires_grad(requires_grad)
            return self

        return Pending.run(self._session.loop, change())


def as_list(parameters: Any) -> list[Any]:
    """Parameters as a list; of a single handle or tensor, too, as functions of torch take one."""
    is_single = isinstance(parameters, torch.Tensor) or (isinstance(parameters, RRef) and parameters.may_be_parameter)
    return [parameters] if is_single else list(parameters)


def some_parameters(function: str, parameters: Any) -> list[Any]:
    """The same. Raises `InvalidArgumentError` if they are no parameters; `function` is given them."""
    given = as_list(parameters) if isinstance(parameters, (RRef, torch.Tensor, Iterable)) else [parameters]
    for each in given:
        if not isinstance(each, torch.Tensor) and not (isinstance(each, RRef) and each.may_be_parameter):
            raise InvalidArgumentError(
                f"{function} takes parameters, such as net.parameters(), and local tensors, not {shown(each)}"
            )
    return given


def freezable(handles: Any) -> list[Freezable]:
    """Handles of parameters and modules as a list, also of a single one. Raises `InvalidArgumentError` for others."""
    given = listed(handles)
    for each in given:
        if not hasattr(each, "note_requires_grad"):
            raise InvalidArgumentError(f"requires_grad_() takes handles of modules and parameters, not {shown(each)}")
    return given
