"""What a request asks of a call, and its arguments: they are read, and those that need a gradient enter the graph."""

from __future__ import annotations

import enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from ps_service.hosting.references import RRef
from ps_service.hosting.value_graphs import GraphUse, with_graph
from ps_service.memory import held
from ps_service.passes import kept_values
from ps_service.passes.records import GraphEntry, KeptInput
from ps_wire.codec.trees import mapped
from ps_wire.errors import InvalidArgumentError
from ps_wire.refs import CallKey, ContextId, Ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from ps_service.hosting.objects import HostedObject, Method
    from ps_service.passes.contexts import PassHost
    from ps_wire.v1.operations_pb2 import CallRequest
    from ps_wire.v1.values_pb2 import Handle


class Keep(enum.Enum):
    """Whether the result of a call stays on this owner."""

    NO = enum.auto()
    REFERENCE = enum.auto()
    """It stays, unless it is a reference already, and a reference to it is returned."""
    VALUE = enum.auto()
    """It stays, so that later calls can get its value as an argument."""


# Looking a member up in its class would take longer.
NO: Final = Keep.NO
REFERENCE: Final = Keep.REFERENCE
VALUE: Final = Keep.VALUE


class Recording(NamedTuple):
    """Where a call is recorded. `place` has the numbers of the calls that it is nested in, and its own number."""

    context: ContextId
    call: CallKey
    place: tuple[int, ...] = ()


class Invocation(NamedTuple):
    """What a request asks of a call. `arguments` has read `args` and `kwargs`. Without `training`, each module runs in
    the mode that it has here; a function gets modules in evaluation mode if `training` is false, and otherwise in their
    own. Without `recording`, the call is not recorded. The `method` may have been looked up already."""

    arguments: Arguments
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: bool | None
    recording: Recording | None = None
    keep: Keep = NO
    method: Method | None = None


class Arguments:
    """Reads the tensors and handles among the arguments of one call, which is recorded if there is a context.

    The request names results that stay on this owner and are arguments by value. `nbytes` is the length of the message
    with the arguments, and the bytes of such results. `wanting` are the tensors that need a gradient, and `kept` the
    inputs that are results of earlier calls of the pass and stayed on this owner. They enter the graph at the node
    `entry`; that is None if there are none. It `has_handles` if objects are among the arguments; those of this owner
    are its `handles`, and `graphs` is the use of those that bring graphs into the pass; None if none does. Tensors go
    to the `device`, or to that of the owner.
    """

    def __init__(
        self,
        engine: PassHost,
        context: ContextId | None = None,
        request: CallRequest | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._engine = engine
        self._device = device or engine.device
        self._context = context
        self.nbytes = 0
        self.wanting: list[torch.Tensor] = []
        self._entering: list[torch.Tensor] = []
        self.kept: list[KeptInput] = []
        self.entry: GraphEntry | None = None
        self._rrefs: list[RRef] = []
        self._request = request
        self.has_handles = False
        self.handles: list[HostedObject] = []
        self.graphs: GraphUse | None = None
        # With a log, notes that rows of a table are looked up, and some may be added.
        self.uses_rows: Callable[[HostedObject], None] | None = None
        # By the position of a result and the `id()` of its tensor, with that tensor, so that no `id()` is used again. A
        # function that makes the copies would refer to this object, and keep the result until a garbage collection.
        self._copies: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def tensor(self, tensor: torch.Tensor, wants_grad: bool) -> torch.Tensor:
        """The tensor that hosted code gets for a received one. Outside of a pass it is a leaf if this owner is one of
        several: the code may call them in its own pass."""
        if self._device.type != "cpu":
            tensor = tensor.to(self._device)
        if not wants_grad:
            return tensor
        if self._context is not None:
            self.wanting.append(tensor)
        elif self._engine.membership.joined and (tensor.is_floating_point() or tensor.is_complex()):
            tensor.requires_grad_()
        return tensor

    def handle(self, message: Handle) -> Any:
        """The object that hosted code gets for a received handle. Raises as `Registry.find`."""
        self.has_handles = True
        ref = Ref.from_message(message)
        if ref.owner != self._engine.name:
            return self._engine.membership.peers.foreign(ref, self._context if message.history else None)
        hosted = self._engine.registry.find(ref)
        self.handles.append(hosted)
        return self._engine.membership.peers.local(self.local(hosted, ref.parameter))

    def local(self, hosted: HostedObject, parameter: str = "") -> RRef:
        """A reference to an object of this owner. Tensors with a history in this pass will enter the graph."""
        rref = RRef.to(hosted, parameter)
        if hosted.history is not None and hosted.history.context == self._context:
            rref.enter(mapped(hosted.value, partial(self._alias, hosted)))
            self._rrefs.append(rref)
        elif self._context is not None and (tensors := with_graph(hosted.value)):
            self.graphs = self.graphs or GraphUse(self._context)
            self.graphs.add(hosted, tensors)
        return rref

    def _alias(self, hosted: HostedObject, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if hosted.output(tensor) is None else self._noted(hosted, tensor, tensor.detach())

    def result(self, position: int) -> Any:
        """The value of a result that stays on this owner. Tensors with a history in this pass will enter the graph. If
        it is several arguments, they have lists and dicts of their own and the same tensors, as if they were sent.
        Raises `InvalidArgumentError` if there is no result at that position, and as `kept_values.find`."""
        results = self._request.results if self._request is not None else ()
        if position >= len(results):
            raise InvalidArgumentError(f"argument {position} among {len(results)} results that stay here")
        hosted = kept_values.find(self._engine, results[position])
        return kept_values.by_value(hosted.value, partial(self._copied, hosted, position))

    def _copied(self, hosted: HostedObject, position: int, tensor: torch.Tensor) -> torch.Tensor:
        known = self._copies.get((position, id(tensor)))
        if known is not None:
            return known[1]
        copy = kept_values.copied(tensor, self._device)
        self.nbytes += held.size(copy)
        self._copies[position, id(tensor)] = tensor, copy
        return self._noted(hosted, tensor, copy)

    def _noted(self, hosted: HostedObject, tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        """Notes what was made of a tensor of a result: it enters the graph if the tensor has a history in this pass."""
        history, position = hosted.history, hosted.output(tensor)
        if history is not None and history.context == self._context and position is not None:
            self._entering.append(made)
            self.kept.append(KeptInput(history.call, position))
        return made

    @property
    def entering(self) -> list[torch.Tensor]:
        """The tensors that enter the graph: those that need a gradient, and results of earlier calls that stayed."""
        return [*self.wanting, *self._entering]

    def enter(self, values: Any) -> Any:
        """Lets the tensors that need a gradient enter the graph, and replaces them by the outputs of the entry node."""
        if not self.wanting and not self._entering:
            return values
        entering = self.entering
        self.entry = GraphEntry()
        by_id = {id(before): after for before, after in zip(entering, self.entry.enter(entering), strict=True)}

        def entered(tensor: torch.Tensor) -> torch.Tensor:
            return by_id.get(id(tensor), tensor)

        for rref in self._rrefs:
            rref.enter(mapped(rref.local_value(), entered))
        return mapped(values, entered)
