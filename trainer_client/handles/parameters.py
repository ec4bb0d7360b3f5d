"""Handles to parameters of hosted modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch

from ps_wire.codec import dtypes
from ps_wire.v1.operations_pb2 import ParameterInfo
from trainer_client.handles import freezing, hints
from trainer_client.handles.references import Reference, RRef

if TYPE_CHECKING:
    from ps_wire.refs import Ref
    from trainer_client.pending import Pending
    from trainer_client.session.session import Session


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
    ) -> None:
        super().__init__(session, ref, reference)
        self.shape = shape
        self.dtype = dtype
        # Shared with the handle to the module.
        self._info = info if info is not None else ParameterInfo(requires_grad=True)

    @classmethod
    def bare(cls, session: Session, ref: Ref, like: torch.Tensor) -> RemoteParameter:
        """A handle that does not keep the module alive; it has the shape and dtype of a gradient."""
        return cls(session, ref, None, like.shape, like.dtype)

    @classmethod
    def of(cls, session: Session, ref: Ref, reference: Reference, info: ParameterInfo) -> RemoteParameter:
        return cls(
            session,
            ref._replace(parameter=info.name),
            reference,
            torch.Size(info.shape),
            dtypes.from_wire(info.dtype),
            info,
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
        return freezing.set_requires_grad([self], requires_grad, self)

    def note_requires_grad(self, requires_grad: bool) -> None:
        """Called when it has been frozen or unfrozen."""
        self._info.requires_grad = requires_grad

    @property
    def name(self) -> str:
        """Its dotted name in the module."""
        return self.ref.parameter

    def __repr__(self) -> str:
        return f"<RemoteParameter {self.ref} {list(self.shape)} {self.dtype}>"
