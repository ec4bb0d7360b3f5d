"""Handles: what a trainer holds of the objects on an owner."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import torch

from ps_wire import dtypes
from ps_wire.errors import ForeignHandleError, InvalidArgumentError, UnknownNameError
from ps_wire.payload import PayloadReader, PayloadWriter
from ps_wire.refs import Ref
from ps_wire.trees import mapped
from ps_wire.v1.frames_pb2 import Frame, Reply, Request
from ps_wire.v1.operations_pb2 import (
    CallRequest,
    FetchRequest,
    LoadStateRequest,
    ObjectInfo,
    ParameterInfo,
    StateRequest,
)
from ps_wire.v1.values_pb2 import Value
from ps_wire.values import Decoder, Encoder
from trainer_client.context import current_context
from trainer_client.pending import Pending
from trainer_client.recorder import RecordedCall
from trainer_client.requests import DEFAULT, submit
from trainer_client.session import Session


class Reference:
    """One count on the owner, given back when the last handle that shares it is gone.

    Args:
        session: Where the object is.
        object_id: Which object.
    """

    def __init__(self, session: Session, object_id: str) -> None:
        # At exit the session's goodbye gives everything back at once.
        weakref.finalize(self, session.release, object_id).atexit = False


class RRef:
    """A handle: refers to an object on an owner, or to a parameter of one.

    An anonymous object lives while any trainer holds a handle to it; a named one until it is deleted. Handles can be
    passed to remote methods of the same owner, are returned by them, and are shared between trainers as
    `str(handle)`, which the other trainer passes to `attach` while this one is still held.
    """

    def __init__(self, session: Session, ref: Ref, reference: Reference | None) -> None:
        self.session = session
        self.ref = ref
        self._reference = reference

    @property
    def owner(self) -> str:
        """Name of the owner."""
        return self.ref.owner

    def to_here(self) -> Pending[Any]:
        """A copy of the value. For a module, ask for its `state_dict` instead."""
        request = Request(fetch=FetchRequest(target=self.ref.to_message()))
        return submit(self.session, request, None, lambda reply, payload: self._read(reply.fetch.value, payload))

    def _read(self, value: Value, payload: PayloadReader) -> Any:
        return Decoder(payload, lambda ref: RRef(self.session, ref, Reference(self.session, ref.object_id))).decode(
            value
        )

    def __str__(self) -> str:
        return str(self.ref)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ref}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RRef) and self.ref == other.ref

    def __hash__(self) -> int:
        return hash(self.ref)

    def __reduce__(self) -> Any:
        raise TypeError("a handle is not pickled: send str(handle), and attach to it on the other side")


class RemoteParameter(RRef):
    """A handle of one parameter of a module.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        requires_grad: Whether it is trained.
    """

    def __init__(
        self,
        session: Session,
        ref: Ref,
        reference: Reference | None,
        shape: torch.Size,
        dtype: torch.dtype,
        requires_grad: bool = True,
    ) -> None:
        super().__init__(session, ref, reference)
        self.shape = shape
        self.dtype = dtype
        self.requires_grad = requires_grad

    @classmethod
    def bare(cls, session: Session, ref: Ref, like: torch.Tensor) -> RemoteParameter:
        """A handle that does not keep its object alive, of the shape and dtype of its gradient."""
        return cls(session, ref, None, like.shape, like.dtype)

    @classmethod
    def of(cls, session: Session, ref: Ref, reference: Reference, info: ParameterInfo) -> RemoteParameter:
        return cls(
            session,
            ref._replace(parameter=info.name),
            reference,
            torch.Size(info.shape),
            dtypes.from_wire(info.dtype),
            info.requires_grad,
        )

    @property
    def name(self) -> str:
        """Its dotted name in the module."""
        return self.ref.parameter

    def __repr__(self) -> str:
        return f"<RemoteParameter {self.ref} {list(self.shape)} {self.dtype}>"


class RemoteObject(RRef):
    """A handle of an instance of an allowed class. Its remote methods are methods of the handle.

        counter = await ps.create("my_module.Counter", 3, name="counter")
        await counter.add(2)

    Attributes:
        class_name: Name of its class on the owner.
        name: Its own name; empty if it is anonymous.
        methods: Names of the methods that may be called.
        training: The mode in which this handle runs modules.
    """

    def __init__(self, session: Session, info: ObjectInfo, reference: Reference) -> None:
        super().__init__(session, Ref.from_message(info.handle), reference)
        self.class_name = info.class_name
        self.name = info.name
        self.methods = tuple(info.methods)
        self.training = True
        self._info = info
        self._timeout: float | None = DEFAULT

    def call(self, method: str, *args: Any, **kwargs: Any) -> Pending[Any]:
        """Calls a method by name; inside a context, and with grad enabled, the call is recorded.

        Raises:
            NotAllowedError, UnknownNameError: The method cannot be called.
            RemoteError: It raised.
        """
        return self._call(method, args, kwargs, keep=False)

    def remote(self, method: str, *args: Any, **kwargs: Any) -> Pending[RRef]:
        """Like `call`, but leaves the result on the owner and gives a handle to it. Not recorded."""
        return self._call(method, args, kwargs, keep=True)

    def options(self, *, timeout: float | None) -> Self:
        """The same handle with another deadline for its calls, in seconds; None waits for ever."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._timeout = timeout
        return other

    def __getattr__(self, name: str) -> Callable[..., Pending[Any]]:
        if name.startswith("_") or name not in self.methods:
            offered = ", ".join(self.__dict__.get("methods", ())) or "none"
            raise AttributeError(f"{self.__dict__.get('class_name', 'the object')} offers no {name!r}, only {offered}")
        return lambda *args, **kwargs: self.call(name, *args, **kwargs)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.methods]

    def _call(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], keep: bool) -> Pending[Any]:
        payload = PayloadWriter()
        encoder = Encoder(payload, self._handle_of)
        frame = Frame()
        request = frame.request.call
        request.target.owner, request.target.object_id, _ = self.ref
        request.method = method
        request.training = self.training
        request.keep = keep
        if args:
            encoder.encode_into(request.args, args)
        if kwargs:
            encoder.encode_into(request.kwargs, dict(kwargs))
        recorded = None if keep else self._record(request, encoder)

        # Handles among the arguments must not be given back before the call has run.
        held = (args, kwargs)

        def finish(reply: Reply, answer: PayloadReader, _: Any = held) -> Any:
            if recorded is None:
                return self._read(reply.call.result, answer)
            return self._receive(recorded, reply.call.result, answer)

        return submit(self.session, frame, payload, finish, self._timeout)

    def _handle_of(self, value: Any) -> Ref | None:
        if not isinstance(value, RRef):
            return None
        if value.owner != self.owner:
            raise ForeignHandleError(
                f"{value} lives on owner {value.owner!r} and cannot be passed to an object of {self.owner!r}"
            )
        return value.ref

    def _record(self, request: CallRequest, encoder: Encoder) -> RecordedCall | None:
        context = current_context()
        if context is None or not torch.is_grad_enabled():
            return None
        recorded = context.record(self.session, [tensor for tensor in encoder.tensors if tensor.requires_grad])
        request.context.CopyFrom(context.id.to_message())
        request.call = recorded.number
        return recorded

    def _receive(self, recorded: RecordedCall, result: Value, payload: PayloadReader) -> Any:
        found: list[torch.Tensor] = []
        places: list[int] = []

        def note(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
            if requires_grad:
                places.append(len(found))
            found.append(tensor)
            return tensor

        def handle(ref: Ref) -> RRef:
            return RRef(self.session, ref, Reference(self.session, ref.object_id))

        value = Decoder(payload, handle, note).decode(result)
        if not places:
            return value
        received = recorded.receive([found[place] for place in places], places)
        by_id = {id(found[place]): tensor for place, tensor in zip(places, received, strict=True)}
        return mapped(value, lambda tensor: by_id.get(id(tensor), tensor))


class RemoteModule(RemoteObject):
    """A handle of a module: call it like the module itself.

    `train()` and `eval()` set the mode of the calls made through this handle, and nothing on the owner.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Pending[Any]:
        return self._call("", args, kwargs, keep=False)

    def forward(self, *args: Any, **kwargs: Any) -> Pending[Any]:
        """The same as calling the handle."""
        return self(*args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        """Calls through this handle run the module in training mode."""
        self.training = mode
        return self

    def eval(self) -> Self:
        """Calls through this handle run the module in evaluation mode."""
        return self.train(False)

    def parameters(self) -> list[RemoteParameter]:
        """Handles of its parameters, in the module's order."""
        return [parameter for _, parameter in self.named_parameters()]

    def named_parameters(self) -> Iterator[tuple[str, RemoteParameter]]:
        """Its parameters with their dotted names."""
        assert self._reference is not None
        for info in self._info.parameters:
            yield info.name, RemoteParameter.of(self.session, self.ref, self._reference, info)

    def parameter(self, name: str) -> RemoteParameter:
        """The parameter of that dotted name.

        Raises:
            UnknownNameError: There is none.
        """
        for known, parameter in self.named_parameters():
            if known == name:
                return parameter
        raise UnknownNameError(f"{self.class_name} has no parameter {name!r}")

    def state_dict(self) -> Pending[dict[str, Any]]:
        """A copy of its parameters and buffers, as `torch.nn.Module.state_dict` names them."""
        return state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Pending[tuple[list[str], list[str]]]:
        """Sets its parameters and buffers, all or none.

        Returns:
            The missing and the unexpected keys.

        Raises:
            InvalidArgumentError: The state does not fit.
        """
        return load_state_dict(self, state, strict)


def state_dict(handle: RRef) -> Pending[Any]:
    """The state of whatever has one on an owner."""
    request = Request(state=StateRequest(target=handle.ref.to_message()))
    return submit(handle.session, request, None, lambda reply, payload: Decoder(payload).decode(reply.state.state))


def load_state_dict(
    handle: RRef, state: Mapping[str, Any], strict: bool = True
) -> Pending[tuple[list[str], list[str]]]:
    """Sets the state of whatever has one on an owner."""
    if not isinstance(state, Mapping):
        raise InvalidArgumentError(f"a state is a dict, not a {type(state).__name__}")
    payload = PayloadWriter()
    request = LoadStateRequest(target=handle.ref.to_message(), strict=strict)
    Encoder(payload).encode_into(request.state, dict(state))
    return submit(
        handle.session,
        Request(load_state=request),
        payload,
        lambda reply, _: (list(reply.load_state.missing_keys), list(reply.load_state.unexpected_keys)),
    )


def handle_from(session: Session, info: ObjectInfo) -> RemoteObject:
    """The handle for an object that a reply describes; the reply granted one reference."""
    reference = Reference(session, info.handle.object_id)
    kind = RemoteModule if "forward" in info.methods else RemoteObject
    return kind(session, info, reference)
