"""The recorded calls of a pass, with the state that their backward needs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge

from ps_service.hosting.histories import REFUSAL
from ps_service.hosting.leaves import Leaf, is_stand_in
from ps_service.hosting.marks import marks_of
from ps_service.passes.gradients import Gradient, added
from ps_wire.compression.registry import decode
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.autograd_graph import MOST_NODES, leaves_of, reached_from
from ps_wire.runtime.locks import ReportingLock

if TYPE_CHECKING:
    from ps_service.group.peers import NestedPass
    from ps_service.hosting.objects import HostedObject
    from ps_service.hosting.value_graphs import GraphUse, Root
    from ps_service.memory.held import Share
    from ps_service.passes.pass_values import PassNumbers, PassValues
    from ps_wire.compression.codec import Encoded
    from ps_wire.refs import CallKey
    from ps_wire.runtime.latency import Latency


_NOTHING: Final = torch.empty(0, device="cpu", requires_grad=True)
_NO_GRADIENT: Final = torch.empty(0, device="cpu")
_NO_CONTEXT: Final = nullcontext()
_ELSEWHERE: Final = get_gradient_edge(_NOTHING)
"""A root without inputs. With a single root, torch does not count it as part of the backward when a hook of several
tensors asks which of them take part."""


class GraphEntry:
    """The node at which the tensor arguments of one recorded call enter the graph; it collects their gradients. `token`
    is an extra input of the node, so that `autograd.grad` propagates back to the inputs."""

    def __init__(self) -> None:
        self.token = torch.empty(0, device="cpu", requires_grad=True)
        self._gradients: tuple[torch.Tensor | None, ...] = ()

    def enter(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The same values, as outputs of one autograd node. They are not leaves, so that hosted code may write to its
        arguments in place, as to any intermediate result of local torch."""
        entered: tuple[torch.Tensor, ...] = _EntryNode.apply(self.token, self, tensors)  # type: ignore[no-untyped-call]
        return entered

    def take_gradients(self) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the last backward, one per tensor; empty if it did not reach the node."""
        gradients, self._gradients = self._gradients, ()
        return gradients


class _EntryNode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, entry: GraphEntry, tensors: list[torch.Tensor]) -> Any:
        ctx.entry = entry
        ctx.set_materialize_grads(False)
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.entry._gradients = gradients
        return torch.empty(0, device="cpu"), None, None


_ENTERING: Final[Any] = _EntryNode._backward_cls
"""The class of the entry nodes; each has its `entry`."""


class Output(NamedTuple):
    """An output that requires grad: its edge in the graph, where its backward begins, without its data."""

    edge: GradientEdge
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class KeptInput(NamedTuple):
    """An input of a recorded call that stayed on this owner: an output of an earlier call, by position."""

    call: CallKey
    position: int


class Gathered(NamedTuple):
    """A gradient of an output that stayed on this owner, computed by the backward of a later call at that place of the
    pass. The shares count its bytes."""

    place: tuple[int, ...]
    tensor: torch.Tensor
    shares: Sequence[Share] = ()


class Propagated(NamedTuple):
    """The gradients that the backward of a call computed: of the caller's inputs that need one, of parameters, and of
    inputs that are results of earlier calls and stayed on this owner."""

    of_inputs: list[torch.Tensor | None]
    of_parameters: list[Gradient]
    of_kept: list[tuple[KeptInput, torch.Tensor]]


class Record:
    """One recorded call: the state that its backward needs, and nothing large after its last backward.

    Of the outputs only their edges in the graph are kept. A backward that does not retain the graph frees the tensors
    that torch has saved. The nodes stay, so that a second backward raises the same error as locally.

    `wanted` is the number of the caller's inputs that need a gradient; the `kept_inputs` entered after them. `leaves`,
    and the numbers of `steps` of their parameters when the call began, are kept of those that are trained. `nbytes` is
    the length of the message with the arguments. `latency` measures the backward; None if that must not run on the
    event loop. `tokens` are the positions of the outputs that stand for results on other owners. There are `others` if
    the graph may reach further leaves. The `values` are there when the call has ended. The `shares` count what is held.
    Values that the call has used bring `graphs` of their own, through which other calls may go, too.
    """

    def __init__(
        self,
        outputs: Sequence[torch.Tensor],
        entry: GraphEntry | None,
        wanted: int,
        leaves: Sequence[Leaf],
        steps: Sequence[int],
        latency: Latency | None = None,
        nbytes: int = 0,
        kept_inputs: Sequence[KeptInput] = (),
        tokens: Sequence[int] = (),
        nested_pass: NestedPass | None = None,
        others: bool = False,
        values: list[PassValues | PassNumbers] | None = None,
    ) -> None:
        self._latency = latency
        self._nbytes = nbytes
        self._lock = ReportingLock()
        self._is_spent = False
        self._outputs: list[Output | None] = []
        for output in outputs:
            if not output.requires_grad:
                self._outputs.append(None)
                continue
            # Torch keeps a node written in Python alive through a view, and sparse tensors have no views.
            held = output if output.layout is torch.strided else output.clone()
            self._outputs.append(Output(get_gradient_edge(held), held.shape, held.dtype, held.device))
        # Positions of the outputs whose graph a backward has freed, or kept only for other calls.
        self._spent: set[int] = set()
        self._is_kept = False
        self._entry = entry
        self._wanted = wanted
        self.leaves: list[Leaf] = []
        # For each leaf that is shared, or a parameter itself, which may be frozen meanwhile, where gradients arrive.
        self._edges: list[GradientEdge | None] = []
        self.steps: list[int] = []
        for leaf, count in zip(leaves, steps, strict=True):
            if leaf.tensor.requires_grad:
                self.leaves.append(leaf)
                edge = leaf.edge
                if edge is None and leaf.tensor is leaf.parameter:
                    edge = get_gradient_edge(leaf.tensor)
                self._edges.append(edge)
                self.steps.append(count)
        self._values = values
        self._kept_inputs = kept_inputs
        self._tokens = tokens
        self._token_seeds = [_NO_GRADIENT] * len(tokens)
        self._nested_pass = nested_pass
        self._others = others
        self.shares: Sequence[Share] = ()
        self.graphs: GraphUse | None = None
        self._gathered: dict[int, list[Gathered]] = {}

    def gather(self, position: int, gradient: Gathered) -> None:
        """Adds a gradient of an output that stayed on this owner; the next backward propagates the sum."""
        with self._lock:
            self._gathered.setdefault(position, []).append(gradient)

    def backward(
        self,
        positions: Sequence[int],
        gradients: Sequence[torch.Tensor],
        retain_graph: bool,
        backward: int = 0,
        changed: dict[HostedObject, bool] | None = None,
    ) -> Propagated:
        """Propagates gradients of the outputs at some positions, and the gathered ones, in the trainer's backward of
        that number. To `changed` go the modules whose state its code has changed, each with whether those are buffers
        alone. Raises `InvalidArgumentError` if a position or gradient does not fit, and what torch raises."""
        for position, gradient in zip(positions, gradients, strict=True):
            output = self._outputs[position] if position < len(self._outputs) else None
            if output is None:
                raise _no_gradient(position)
            if gradient.shape != output.shape or gradient.dtype != output.dtype:
                raise InvalidArgumentError(
                    f"output {position} is {output.dtype} of shape {tuple(output.shape)}, "
                    f"but its gradient is {gradient.dtype} of shape {tuple(gradient.shape)}"
                )
        # Different calls share no graph that their backwards free, so these may run concurrently; those of one call may
        # not.
        with self._lock, self._found_values(changed) if self._values else _NO_CONTEXT:
            began = self._latency.begin() if self._latency is not None else None
            places, seeds = list(positions), list(gradients)
            if self._gathered:
                self._add_gathered(places, seeds)
            places += self._tokens
            seeds += self._token_seeds
            if not places:
                return Propagated([None] * self._wanted, [], [])
            if self._is_spent or (self._is_kept and self._spent.intersection(positions)):
                raise RuntimeError(
                    "Trying to backward through the graph a second time: an earlier backward of the call has freed "
                    "what it had saved. Specify retain_graph=True for that one"
                )
            leaves, found = self._propagate(places, seeds, retain_graph, backward)
            if not retain_graph:
                self._free(places)
                if self.graphs is not None:
                    _free_kept(self.graphs.end())
            entered = () if self._entry is None else self._entry.take_gradients()
            if self._latency is not None and began is not None:
                self._latency.end(began, self._nbytes)
        of_parameters = []
        for leaf, of_leaf in zip(leaves, found, strict=False):
            if of_leaf is not None:
                of_parameters.append(Gradient(leaf.ref, leaf.parameter, of_leaf))
        of_kept = []
        for kept, of_input in zip(self._kept_inputs, entered[self._wanted :], strict=False):
            if of_input is not None:
                of_kept.append((kept, of_input))
        of_inputs: list[torch.Tensor | None] = list(entered[: self._wanted]) if entered else [None] * self._wanted
        return Propagated(of_inputs, of_parameters, of_kept)

    @contextmanager
    def _found_values(self, changed: dict[HostedObject, bool] | None) -> Iterator[None]:
        """Gives modules whose code runs in the backward the values and random numbers of the pass, and notes which of
        them it changes."""
        found = list(self._values or ())
        modules = [] if changed is None else [each.hosted for each in found if each.hosted is not None]
        before = [(hosted, marks_of(hosted)) for hosted in modules]
        try:
            with ExitStack() as stack:
                for values in found:
                    stack.enter_context(values.found())
                yield
        finally:
            for hosted, marks in before:
                now = marks_of(hosted)
                if changed is not None and not (now.extra == marks.extra and now.same_buffers(marks)):
                    changed[hosted] = now.extra == marks.extra and changed.get(hosted, True)

    def placed(self, position: int, gradient: torch.Tensor | Encoded) -> torch.Tensor:
        """The gradient of an output, on the device of that. A codec may have encoded it: its lengths are checked before
        it is allocated, and if it does not fit, it is an `InvalidArgumentError`."""
        output = self._outputs[position] if position < len(self._outputs) else None
        if output is None:
            raise _no_gradient(position)
        if isinstance(gradient, torch.Tensor):
            return gradient.to(output.device)
        found = decode(gradient, torch.empty((), dtype=output.dtype, device="cpu").expand(output.shape))
        if found.layout is not torch.strided:
            raise InvalidArgumentError(f"output {position} of the call is dense, and its encoded gradient is sparse")
        return found.to(output.device)

    @property
    def expected_seconds(self) -> float:
        """How long its backward takes on the event loop; infinity if it must not run there."""
        if self._latency is None or self._lock.locked():
            return math.inf
        return self._latency.expected(self._nbytes)

    def _propagate(
        self, places: Sequence[int], seeds: Sequence[torch.Tensor], retain_graph: bool, backward: int
    ) -> tuple[Sequence[Leaf], Sequence[torch.Tensor | None]]:
        """Runs torch's backward from the outputs at `places`, with the gradients `seeds`. Returns the leaves, and the
        gradient of each, in order; further gradients follow, which are not needed."""
        roots, leaves, nested = [], self.leaves, self._nested_pass
        targets: list[torch.Tensor | GradientEdge] = []
        for leaf, edge in zip(leaves, self._edges, strict=True):
            targets.append(leaf.tensor if edge is None else edge)
        for place in places:
            output = self._outputs[place]
            if output is not None:
                roots.append(output.edge)
        # Besides the parameters, these make autograd propagate through the whole graph.
        ends = [] if self._entry is None else [self._entry.token]
        if nested is not None:
            ends.append(nested.root)
        if self._others:
            others = self._other_leaves(roots, {id(each) for each in ends})
            leaves = [*leaves, *others]
            targets += [leaf.tensor for leaf in others]
        targets += ends
        keeps = not retain_graph and self.graphs is not None and self.graphs.keeps()
        self._is_kept = self._is_kept or keeps
        with _NO_CONTEXT if nested is None else nested.propagating(retain_graph, backward):
            found = gradients_of((*roots, _ELSEWHERE), tuple(targets), (*seeds, _NO_GRADIENT), retain_graph or keeps)
        return leaves, found

    def _other_leaves(self, roots: Sequence[GradientEdge], known: set[int]) -> list[Leaf]:
        """Finds the leaves of the graph that belong to no hosted module: parameters that other objects keep. Inputs or
        parameters that were lent to an earlier call are an `InvalidArgumentError`."""
        known = known | {id(leaf.tensor) for leaf in self.leaves}
        leaves, entries = reached_from(roots, _ENTERING)
        others = [leaf for leaf in leaves if id(leaf) not in known]
        if any(each.entry is not self._entry for each in entries) or any(map(is_stand_in, others)):
            raise InvalidArgumentError(f"the call {REFUSAL}")
        # Code may have found a parameter in another way than through its view.
        refs = {id(each.parameter): each.ref for each in self.leaves}
        return [Leaf(refs.get(id(leaf)), leaf, leaf) for leaf in others]

    def _add_gathered(self, places: list[int], seeds: list[torch.Tensor]) -> None:
        """Adds the gathered gradients to the outputs at which a backward begins, and to their gradients."""
        for place, gathered in self._gathered.items():
            # Local torch adds them in this order: the latest call first.
            ordered = sorted(gathered, key=lambda each: each.place, reverse=True)
            places.append(place)
            seeds.append(functools.reduce(added, (each.tensor for each in ordered)))
        self._gathered = {}

    def _free(self, places: Sequence[int]) -> None:
        """Frees what the call holds, if backwards have freed the graphs of all of its outputs, those at these places
        included."""
        self._spent.update(places)
        if len(self._spent) < len(self._outputs) - self._outputs.count(None):
            return
        self.shares = ()
        if self._values:
            self._values.clear()
        if self._is_kept:
            # What the call itself has saved goes with the last reference to its nodes.
            self._outputs = [None if each is None else each._replace(edge=_ELSEWHERE) for each in self._outputs]
            self._is_spent = True
        for leaf in self.leaves:
            # A step has moved the parameter meanwhile, and this leaf still refers to the former storage.
            if leaf.tensor.data_ptr() == leaf.parameter.data_ptr():
                continue
            if leaf.is_shared:
                # Other calls may use it. Without a reference from here, the last of them frees the memory.
                self.leaves, self._edges, self._is_spent = [], [], True
                return
            leaf.tensor.data = leaf.tensor.detach().new_empty(0)


def _no_gradient(position: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"output {position} of the call has no gradient to propagate")


def _free_kept(roots: Sequence[Root]) -> None:
    """Frees the graphs of values that were kept for several calls. Torch does that in a backward only."""
    if not roots:
        return
    edges, zeros = [each.edge for each in roots], [each.zeros for each in roots]
    # Not if the graph is too deep, its code fails, or its tensors were changed in place meanwhile.
    with suppress(Exception):
        gradients_of(edges, leaves_of(edges, MOST_NODES), zeros, False)


def gradients_of(
    roots: Sequence[GradientEdge],
    targets: Sequence[torch.Tensor | GradientEdge],
    seeds: Sequence[torch.Tensor],
    retain_graph: bool,
) -> Sequence[torch.Tensor | None]:
    """Like `torch.autograd.grad`, for first derivatives; the gradient of a target that was not reached is None. That
    function checks every argument before it calls torch's engine. For a small graph the checks, which an owner has made
    already, take longer than the computation. Without targets it is a `RuntimeError`."""
    if not targets:
        # Without targets the engine would accumulate at all leaves of the graph.
        raise RuntimeError("there is nothing whose gradient could be wanted: no input and no parameter requires grad")
    found: Sequence[torch.Tensor | None] = _engine_run_backward(
        tuple(roots), tuple(seeds), retain_graph, False, tuple(targets), allow_unreachable=True, accumulate_grad=False
    )
    return found
