"""Handles to hosted objects and modules."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import torch

from ps_wire.arguments import check_flag, check_text
from ps_wire.close_names import hint
from ps_wire.errors import PsError, UnknownNameError
from ps_wire.numbers import check_timeout
from ps_wire.refs import Ref
from ps_wire.runtime.failures import shortened
from ps_wire.v1.operations_pb2 import ObjectInfo
from trainer_client.graph.current import current_context
from trainer_client.handles import calls, hints, states
from trainer_client.handles.calls import USUAL
from trainer_client.handles.following import FollowingModule, ModuleChange
from trainer_client.handles.parameters import RemoteParameter, set_requires_grad
from trainer_client.handles.references import Reference, RRef
from trainer_client.pending import DEFAULT
from trainer_client.replicas.classes import local_module
from trainer_client.replicas.replica import Replica

if TYPE_CHECKING:
    from ps_wire.compression.choice import Compress
    from trainer_client.graph.nodes import Encode
    from trainer_client.handles.parameters import Freezable
    from trainer_client.pending import Pending
    from trainer_client.replicas.classes import Factory, MadeBy
    from trainer_client.replicas.exchange import Reads
    from trainer_client.session.session import Session


_NO_INFO: Final = ObjectInfo()


class RemoteObject(RRef):
    """A handle to an instance of an allowed class. The handle has the remote methods of the class.

        counter = await ps.create("my_module.Counter", 3, name="counter")
        await counter.add(2)

    Attributes:
        class_name: Name of its class on the owner.
        name: Name of the object; empty if it is anonymous.
        methods: Names of the methods that may be called.
        made_by: The class and the plain arguments that this client made it with; None if it did not.
        was_made: Whether the request that brought this handle has made the object.
        given_by: The method of the client that gives an optimizer or a scheduler by its name, which can do more than
            this handle; empty for other objects.
    """

    may_be_parameter = False

    def __init__(self, session: Session, info: ObjectInfo, reference: Reference) -> None:
        super().__init__(session, Ref.from_message(info.handle), reference)
        self.class_name = info.class_name
        self.name = info.name
        self.methods = tuple(info.methods)
        self.made_by: MadeBy | None = None
        self.was_made = False
        self.given_by = ""
        self._info = info
        self._options = USUAL

    @property
    def training(self) -> bool | None:
        """Whether calls through this handle run modules in training mode."""
        return self._options.training

    @training.setter
    def training(self, mode: bool) -> None:
        self._options = self._options._replace(training=mode)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Pending[Any]:
        """Calls a method by name; inside a context, and with grad enabled, the call is recorded.

        Returns:
            Its result. Tensors are on the CPU.

        Raises:
            NotAllowedError, UnknownMethodError: The method cannot be called.
            StaleHandleError: The object no longer exists.
            RemoteError: The method raised an exception.
        """
        return self._call(method, args, kwargs, keep=False)

    def remote(self, method: str, *args: Any, **kwargs: Any) -> Pending[RRef]:
        """Like `call`, but leaves the result on the owner and returns a handle to it.

        Inside a context the call is recorded, and gradients propagate back through every use of the handle in that
        context.
        """
        return self._call(method, args, kwargs, keep=True)

    def __str__(self) -> str:
        return f"{hints.title(self._info)} on {self.owner} ({self.ref})"

    def _told(self) -> str:
        return f", {hints.title(self._info)}{'' if self.training else ' in evaluation mode'}"

    def options(self, *, timeout: float | None = DEFAULT, seed: int | None = None) -> Self:
        """A handle to the same object with other options for its calls. Options that are not given stay the same.

        Args:
            timeout: Seconds that a call may take; None is no limit.
            seed: Seed of each call: it draws the numbers that follow `torch.manual_seed(seed)`.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        if timeout != DEFAULT:
            check_timeout(timeout)
            other._options = other._options._replace(timeout=timeout)
        if seed is not None:
            other._options = other._options._replace(seed=seed)
        return other

    def parameter(self, name: str) -> RemoteParameter:
        """A handle to the parameter of that dotted name.

        Raises:
            UnknownNameError: The object has no such parameter.
        """
        assert self._reference is not None
        check_text("the name of a parameter", name)
        for info in self._info.parameters:
            if info.name == name:
                return RemoteParameter.of(self.session, self.ref, self._reference, info, self._info)
        close = hint(name, [info.name for info in self._info.parameters])
        raise UnknownNameError(f"{self.class_name} has no parameter {name!r}{close}")

    def __getattr__(self, name: str) -> Callable[..., Pending[Any]]:
        if name.startswith("_") or name not in self.methods:
            raise AttributeError(self._hint(name))
        return partial(self.call, name)

    def _hint(self, name: str) -> str:
        known = self.__dict__  # not the attributes: some are missing while a handle is copied
        info = known.get("_info", _NO_INFO)
        parameters = [each.name for each in info.parameters]
        class_name, methods = known.get("class_name", "the object"), known.get("methods", ())
        made_by = known.get("made_by")
        own = "" if made_by is None else made_by.cls
        told = hints.of_object(name, class_name, methods, parameters, info.unmarked, own)
        given_by = known.get("given_by", "") if info.name else ""
        return f"{told}. {given_by}(name={info.name!r}) gives it" if given_by else told

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.methods]

    def _again(self) -> str:
        return hints.again(self.class_name, self.name, isinstance(self, RemoteModule))

    def __ps_objects__(self) -> Sequence[RemoteObject]:
        return (self,)

    def call_encoding(self, encode: Encode | None, method: str, *args: Any) -> Pending[Any]:
        """Like `call`; the gradients of the result are encoded. No argument is a `Pending`."""
        return self._call(method, args, {}, False, encode)

    def _call(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        keep: bool,
        encode: Encode | None = None,
    ) -> Pending[Any]:
        if type(method) is not str:
            check_text('the name of a method, as in net.remote("forward", x),', method)
        try:
            return calls.call(self.session, self, method, args, kwargs, self._options, keep=keep, encode=encode)
        except PsError as error:
            shortened(error)
            raise


class RemoteModule(RemoteObject):
    """A handle to a module: call it like the module itself.

    `train()` and `eval()` set the mode of calls through this handle; they change nothing on the owner.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Pending[Any]:
        return self._call("", args, kwargs, keep=False)

    def forward(self, *args: Any, **kwargs: Any) -> Pending[Any]:
        """Calls the module, like `handle(...)`.

        Returns:
            The result of the module's `forward`. Tensors are on the CPU.

        Raises:
            StaleHandleError: The module no longer exists.
            InvalidArgumentError: A recorded call cannot be trained; the message says why.
            RemoteError: The module raised an exception.
        """
        return self(*args, **kwargs)

    def read(self, *args: Any, timeout: float | None = DEFAULT, **kwargs: Any) -> Pending[Any]:
        """Calls the module for those who serve it: in evaluation mode, whatever the mode of this handle is, without
        gradients, and beside any context. The random numbers of the client's calls go on as if it had not been. If the
        module offers a method of that name, it is called, as any other.

        Args:
            args: Arguments of `forward`, and so are the other `kwargs`.
            timeout: Seconds that the call may take; None is no limit.

        Raises:
            StaleHandleError, RemoteError: As for `forward`.
        """
        if "read" in self.methods:  # one of its own
            return self.options(timeout=timeout).call("read", *args, **kwargs)
        with torch.no_grad():
            return self.for_reading(timeout)(*args, **kwargs)

    def for_reading(self, timeout: float | None = DEFAULT) -> Self:
        """A handle that calls as `read` does, within `torch.no_grad()`."""
        return self.options(timeout=timeout, seed=0).eval()

    def changes(self, since: Any = None, *, every: float = 1.0) -> AsyncGenerator[ModuleChange, None]:
        """Follows the parameters and buffers: first all, or those that differ from a version, and from then on those
        that change. It ends only with an error, or when it is left. The blocking client has the same with `for`. A
        method of that name that a module offers is called with `call`.

        Args:
            since: The version of an earlier `ModuleChange`; None for all. If the owner was started again meanwhile, or
                this is another module of that name, all come.
            every: Seconds between two questions to the owner.

        Raises:
            InvalidArgumentError: An argument does not fit.
            StaleHandleError: The module no longer exists.
        """
        return self.following(since, every).changes()

    def changes_in_thread(self, since: Any = None, *, every: float = 1.0) -> Iterator[ModuleChange]:
        """The same for a plain thread, which waits for each."""
        return self.following(since, every).in_thread()

    def following(self, since: Any, every: float) -> FollowingModule:
        """What gives the changes; arguments and errors as for `changes`."""
        names = [each.name for each in self._info.parameters]
        return FollowingModule(self.session, self.ref.to_message(), names, since, every)

    def __getattr__(self, name: str) -> Any:
        # torch asks for it when it refuses a handle in a container.
        return hints.MODULE if name == "__qualname__" else super().__getattr__(name)

    def __iter__(self) -> NoReturn:
        raise TypeError("a handle is no list of parameters: an optimizer is given net.parameters()")

    def train(self, mode: bool = True) -> Self:
        """Sets the mode of calls through this handle: training mode, or evaluation mode if `mode` is false."""
        check_flag("mode", mode)
        self.training = mode
        return self

    def eval(self) -> Self:
        """Sets evaluation mode for calls through this handle."""
        return self.train(False)

    def parameters(self) -> list[RemoteParameter]:
        """Handles to its parameters, in the module's order."""
        return [parameter for _, parameter in self.named_parameters()]

    def named_parameters(self) -> Iterator[tuple[str, RemoteParameter]]:
        """Dotted names of its parameters, and handles to them."""
        assert self._reference is not None
        for info in self._info.parameters:
            yield info.name, RemoteParameter.of(self.session, self.ref, self._reference, info, self._info)

    def replica(
        self,
        factory: Factory | None = None,
        *,
        compress: Compress = None,
        error_feedback: bool = True,
        compress_pull: Compress = None,
        reads: Reads = "consistent",
        overlap: int = 0,
    ) -> Pending[Replica]:
        """Makes the module here, too, with the parameters and buffers that it has on the owner.

        Args:
            factory: The class of the module, or a function without arguments that makes it. None for the class and the
                arguments that this client has made the handle with. Names of classes that an owner sends are not used.
            compress: The codec of pushed gradients: one for all, or one for each pattern of names; see
                `ps_wire.compression.choice.Choice`. Gradients of fewer than 1024 elements are sent as they are.
            error_feedback: Whether the replica keeps what a codec has left out, and adds it to the next gradient. It is
                lost with this process.
            compress_pull: The codec of pulled parameters, in the same forms: `BF16`, `FP16`, `Int8`, `Zstd`, or one of
                the program's own. Those of fewer than 1024 elements, and buffers, are sent as they are.
            reads: `consistent`: pulled values are from between the same two steps. `inconsistent`: the owner waits for
                no step.
            overlap: How many pushes may be under way while the next forward runs. Their results come that much later.

        Raises:
            InvalidArgumentError: The class or its arguments are not known, it makes other parameters, or a codec is not
                one for pulls.
            StaleHandleError: The module no longer exists.
        """
        more = {"enabled": error_feedback, "pulls": compress_pull, "reads": reads, "overlap": overlap}
        module = local_module(self.made_by, factory, self.class_name)
        return Replica(self, module, self._info.parameters, compress, current=current_context, **more).begin()

    def requires_grad_(self, requires_grad: bool = True) -> Pending[Self]:
        """Freezes or unfreezes all its parameters, for all trainers and for calls that begin later.

        Open passes are not affected. Optimizers skip parameters without a gradient.

        Returns:
            This handle.

        Raises:
            InvalidArgumentError: A parameter holds integers, which cannot be trained; nothing was changed.
        """
        return set_requires_grad([self], requires_grad, self)

    def note_requires_grad(self, requires_grad: bool) -> None:
        """Called when its parameters have been frozen or unfrozen."""
        for info in self._info.parameters:
            info.requires_grad = requires_grad

    async def now(self) -> Sequence[Freezable]:
        return [self]

    def state_dict(self) -> Pending[dict[str, Any]]:
        """A copy of its parameters and buffers on the CPU, under the keys of `torch.nn.Module.state_dict`."""
        return states.state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Pending[tuple[list[str], list[str]]]:
        """Sets its parameters and buffers: all of them, or none if it raises.

        Args:
            state: Tensors by key, in the shapes of the parameters and buffers.
            strict: Whether missing and unexpected keys are errors.

        Returns:
            The missing and the unexpected keys.

        Raises:
            InvalidArgumentError: The keys or shapes do not fit.
        """
        return states.load_state_dict(self, state, strict, may_be_tied=True)


def handle_from(session: Session, info: ObjectInfo) -> RemoteObject:
    """A handle to the object that a reply describes. It owns the reference that the reply has granted."""
    reference = Reference(session, info.handle.object_id)
    kind = RemoteModule if "forward" in info.methods else RemoteObject
    return kind(session, info, reference)
