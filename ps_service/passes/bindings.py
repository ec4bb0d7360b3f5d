"""Bindings: one hosted module, lent to one call, and what the call has done to it."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from ps_service.hosting.aliases import WHY, is_within
from ps_service.hosting.histories import REFUSAL, reaches_ended
from ps_service.hosting.hooks import HookWatch, hooked_nodes
from ps_service.hosting.internals import MOST, Found
from ps_service.hosting.parameter_attributes import AttributeWatch
from ps_service.hosting.structure import tensors_below
from ps_service.parameters.leaves import StandIn, is_written, let_go, stand_in
from ps_service.parameters.locks import COPY_AT_MOST, ParameterLocks
from ps_service.passes.late_runs import LateRun
from ps_service.passes.leaf import Leaf
from ps_service.passes.lineage import has_own_functions, runs_own_function
from ps_service.passes.saved_tensors import Hold, Watch
from ps_service.passes.writes import taken_memory, write
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.autograd_graph import leaves_of

if TYPE_CHECKING:
    from ps_service.hosting.objects import HostedObject

FIRST_EXAMINED: Final = 8
"""Recorded calls of each method of a module in which parameters of other hosted modules are looked for."""

EXAMINED_EVERY: Final = 64
"""Of the later ones, those in which they are looked for again."""


class Binding:
    """A bound copy of a module, whose parameters are pinned until the call is over.

    Code that writes to parameters works on copies, which become the parameters' numbers when it is done: nobody sees
    half of it, and open passes keep their numbers. Which code does so is known from its earlier runs; the first run of
    anything but `forward` counts as such. Only a parameter of more than `COPY_AT_MOST` bytes that no open pass has
    saved is written to in place.

    Args:
        parameter_locks: Guards the parameters.
        hosted: The module.
        training: The mode the bound copy is in.
        code: Name of what runs: a method, or a function.
        nested: Whether the same call reads something already.
        recorded: Whether gradients will be asked for.

    Attributes:
        hosted: The module.
        leaves: What stands for each parameter.
        watches: For each leaf, who notices that its storage is written to; None if the storage is the call's own.
    """

    def __init__(
        self,
        parameter_locks: ParameterLocks,
        hosted: HostedObject,
        training: bool,
        code: str,
        nested: bool,
        recorded: bool,
    ) -> None:
        assert hosted.bound_copies is not None
        self.hosted = hosted
        self._parameter_locks = parameter_locks
        self._training = training
        self._code = code
        self._recorded = recorded
        self._whole = True
        self._failed: Exception | None = None
        self._remembered = ""
        self._run = (code, training)
        self._internals = hosted.bound_copies.internals
        self._stack: ExitStack | None = None
        parameters = list(hosted.parameters.values())
        copies = code not in hosted.readers
        if code in hosted.writers or not self._internals.is_free(self._run):
            copies = self._take_turn(nested) or copies
        self._reading = parameter_locks.reading(parameters, hosted.parameter_states, nested)
        try:
            reading = self._reading.__enter__()
        except BaseException:
            self._leave()
            raise
        try:
            self._changes = reading.changes
            self.watches: list[Watch | None] = [Watch(pin) for pin in reading.pins]
            self._parameters = parameters
            # Those that have been copied, by place.
            self._originals: dict[int, torch.Tensor] = {}
            if copies:
                self._copy(reading.leaves)
            self._holds: list[Hold | LateRun] = []
            self.leaves = [
                Leaf(ref, parameter, leaf, steps, self._holds)
                for ref, parameter, leaf, steps in zip(
                    hosted.parameter_refs, parameters, reading.leaves, reading.steps, strict=True
                )
            ]
            self._before = [(leaf.data_ptr(), leaf.requires_grad) for leaf in reading.leaves]
            self._tensors = reading.leaves
            self._hooks = HookWatch(self._tensors)
            self._attributes = AttributeWatch(self._tensors)
            self._bound_copy = hosted.bound_copies.lend(training, parameters, reading.leaves)
            self._found = self._internals.found()
            self._versions = [tensor._version for tensor in self._found.tensors]
            self._historic = {id(tensor) for tensor in self._found.tensors if tensor.requires_grad}
        except BaseException:
            self._reading.__exit__(None, None, None)
            self._leave()
            raise

    def _take_turn(self, nested: bool) -> bool:
        """Waits until no other call changes what this one may change; returns whether it may write to parameters."""
        self._stack = ExitStack()
        with ExitStack() as stack:
            if not self._internals.is_free(self._run):
                stack.enter_context(self._internals.turn(self._parameter_locks, self._run, nested))
            writes = self._code in self.hosted.writers
            if writes:
                stack.enter_context(self._parameter_locks.stepping(self.hosted.parameter_states))
            self._stack = stack.pop_all()
        return writes

    def _leave(self) -> None:
        if self._stack is not None:
            self._stack.close()

    @property
    def module(self) -> nn.Module:
        """The bound copy's module."""
        return self._bound_copy.module

    def kept(self) -> Found:
        """The tensors beside the parameters that outlive the call, as they are at its end."""
        tensors, is_all = self._internals.found()
        for change in self._bound_copy.changes():
            is_all &= tensors_below(change.value, tensors, MOST)
        return Found([*tensors, *self._internals.buffers()], is_all)

    @property
    def saved(self) -> list[torch.Tensor]:
        """The tensors beside the parameters of which a backward needs copies, because other calls may change them."""
        plain = self._found.tensors if self._internals.changing else []
        return [*plain, *self._internals.buffers()]

    def _copy(self, leaves: list[torch.Tensor]) -> None:
        """Puts copies in place of the leaves that code may write to."""
        for i, leaf in enumerate(leaves):
            watch = self.watches[i]
            assert watch is not None
            if leaf.numel() * leaf.element_size() <= COPY_AT_MOST or watch.pin.saved:
                self._originals[i] = leaf
                leaves[i], self.watches[i] = stand_in(self._parameters[i], copied=True), None

    def give_back(self) -> None:
        """The code is done: nobody runs on the bound copy any more, and the parameters are not read any more."""
        assert self.hosted.bound_copies is not None
        try:
            self._aliases = [each.name for each in self._bound_copy.changes() if self._lies_within(each.value)]
            self._attributes.note(self.module, self._lies_within)
            returned = self.hosted.bound_copies.take_back(self._training, self._bound_copy, self._historic)
            self._whole, self._failed = returned.whole, returned.failed
            self._internals.note_run(self._run, self._found, self._versions, returned.changed)
            self._internals.is_remembered |= returned.held
            self._hooked = self._hooks.remove_new()
            self._touched = [
                i
                for i, (leaf, (pointer, flag)) in enumerate(zip(self._tensors, self._before, strict=True))
                if leaf._version
                or leaf.requires_grad != flag
                or leaf.grad is not None
                or leaf.data_ptr() != pointer
                or leaf.__dict__
                or self._originals
            ]
            self._written = {i for i in self._touched if self._is_written(i, self._tensors[i])}
            self._remembered = returned.remembered
            if self._recorded and returned.late:
                self._holds.append(LateRun(self._bound_copy, str(self.hosted)))
            if self._recorded and returned.held:
                self.hold()
        finally:
            self._reading.__exit__(None, None, None)

    def _lies_within(self, value: Any) -> bool:
        tensors: list[torch.Tensor] = []
        tensors_below(value, tensors, MOST)
        leaves = set(map(id, self._tensors))
        return any(is_within(each, self._tensors) for each in tensors if id(each) not in leaves)

    def inspect(self, roots: Sequence[torch.Tensor], known: Container[int]) -> None:
        """Sees to it that the backward of a call needs nothing that is not kept for it.

        Args:
            roots: The tensors of the call's result that require grad.
            known: Ids of all that stands for parameters in the call.

        Raises:
            InvalidArgumentError: Their graph reaches a parameter itself in place of what stands for it, or what an
                earlier call has left behind.
        """
        if self._internals.ends_histories and reaches_ended(roots):
            raise InvalidArgumentError(f"{self._code} of {self.hosted} {REFUSAL}")
        # Torch refers to the parameter from the node that accumulates its gradient, if there is one.
        if any(parameter._use_count() != 1 for parameter in self._parameters):  # type: ignore[attr-defined]
            found = set(map(id, leaves_of(roots)))
            for i, parameter in enumerate(self._parameters):
                if id(parameter) in found:
                    raise InvalidArgumentError(
                        f"{self._code} has computed with parameter {self._name(i)!r} of {self.hosted} in a way that a "
                        "trainer cannot train: not through the module's attributes, but through something that was "
                        "computed in the constructor, a global variable, a class attribute or a generator. Look the "
                        "parameter up on self when the module is called"
                    )
        if self._is_examined():
            self._examine(leaves_of(roots), known)
        if has_own_functions() and runs_own_function(roots):
            self.hold()

    def _is_examined(self) -> bool:
        """Whether the whole graph is looked at, which costs more than a small call.

        At first, and then now and then; and always once something that is not known has gone on using a bound copy.
        """
        count = self.hosted.recorded[self._code] = self.hosted.recorded[self._code] + 1
        return self._internals.is_remembered or count <= FIRST_EXAMINED or count % EXAMINED_EVERY == 0

    def _examine(self, leaves: Sequence[torch.Tensor], known: Container[int]) -> None:
        if any(map(self._parameter_locks.knows, leaves)):
            raise InvalidArgumentError(
                f"{self._code} of {self.hosted} has computed with a parameter of another hosted module in a way that a "
                "trainer cannot train. Make that module a submodule (an attribute, or in an nn.ModuleList), or take "
                "it from its reference, with rref.local_value(), when the module is called"
            )
        if any(isinstance(leaf, StandIn) and id(leaf) not in known for leaf in leaves):
            raise InvalidArgumentError(f"{self._code} of {self.hosted} {REFUSAL}")
        if hooked_nodes(leaf for leaf in leaves if id(leaf) in known):
            raise InvalidArgumentError(
                f"{self._code} of {self.hosted} has registered a hook at the node of torch's graph that accumulates a "
                "parameter's gradient, and here no such node runs. Register it at what the call computes, or, in the "
                "constructor, at the parameter"
            )

    def hold(self) -> None:
        """Keeps the parameters pinned until the call's graph is of no use any more: not only torch has saved them."""
        self._holds.append(Hold(self._parameter_locks, [watch.pin for watch in self.watches if watch is not None]))

    def settle(self, raised: bool) -> None:
        """Hands what the code has done to the parameters on to them, after `give_back`.

        What it had done when it raised counts, as it does locally.

        Args:
            raised: Whether the code has raised.

        Raises:
            InvalidArgumentError: It has changed the structure, or left gradients at its own parameters.
            RuntimeError: It has written to a parameter that others have changed meanwhile.
        """
        try:
            self._attributes.hand_on(self._parameters, self._internals, self._historic)
            if self._touched:
                self._take_over(raised)
            self.hosted.readers.add(self._code)
        finally:
            self._leave()
            for i in self._touched:
                let_go(self._tensors[i])
        if not raised:
            self._check()

    def _take_over(self, raised: bool) -> None:
        places = sorted(self._written)
        if places:
            self.hosted.writers.add(self._code)
            self._write(places, raised)
        for i in self._touched:
            if self._tensors[i].requires_grad != self._before[i][1]:
                self._parameter_locks.set_requires_grad([self._parameters[i]], self._tensors[i].requires_grad)

    def _is_written(self, i: int, leaf: torch.Tensor) -> bool:
        if is_written(leaf) or leaf.data_ptr() != self._before[i][0]:
            return True
        # Through numpy, for example. Nothing else writes to the original meanwhile, except inconsistent steps.
        original = self._originals.get(i)
        if original is None or self.hosted.parameter_states[i].changes != self._changes[i]:
            return False
        return not torch.equal(_bytes(original), _bytes(leaf))

    def _write(self, places: list[int], raised: bool) -> None:
        self._check_kinds(places)
        moved = []
        for i in places:
            watch = self.watches[i]
            if watch is not None and self._tensors[i].data_ptr() == self._before[i][0]:
                # In place: the numbers are there already, unless a step has moved the parameter meanwhile.
                self._parameter_locks.note_written(watch.pin)
                watch.seen += 1
                if self.leaves[i].parameter.data_ptr() == self._before[i][0]:
                    continue
            moved.append(i)
        parameter_states = [self.hosted.parameter_states[i] for i in moved]
        if any(
            parameter_state.changes != self._changes[i]
            for i, parameter_state in zip(moved, parameter_states, strict=True)
        ):
            if raised:
                return
            raise RuntimeError(
                f"{self._code} has written to parameters of {self.hosted} that others have changed at the same time; "
                "theirs were kept. Call it again: it will have the parameters for itself"
            )
        parameters = [self._parameters[i] for i in moved]
        with self._parameter_locks.writing(parameters, parameter_states, consistent=True):
            write(parameters, [self._tensors[i].detach() for i in moved], self._kept_tensors())

    def _check_kinds(self, places: list[int]) -> None:
        for i in places:
            tensor, parameter = self._tensors[i], self._parameters[i]
            if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
                raise InvalidArgumentError(
                    f"{self._code} has given parameter {self._name(i)!r} of {self.hosted} another shape or dtype; "
                    "those of a hosted module are fixed, and nothing was changed"
                )
            if tensor.data_ptr() != self._before[i][0]:
                self._check_memory(i)

    def _check_memory(self, i: int) -> None:
        others = [tensor for tensor in self._tensors if tensor is not self._tensors[i]]
        owner = taken_memory(self._tensors[i], others, self._kept_tensors())
        if owner:
            raise InvalidArgumentError(
                f"{self._code} has given parameter {self._name(i)!r} of {self.hosted} the memory of {owner}. Hosted "
                "parameters have memory of their own, and nothing was changed. Give it a copy, with clone()"
            )

    def _kept_tensors(self) -> list[torch.Tensor]:
        return [*self._internals.found().tensors, *self._internals.buffers()]

    def _name(self, i: int) -> str:
        return list(self.hosted.parameters)[i]

    def _check(self) -> None:
        if not self._whole:
            raise InvalidArgumentError(
                f"{self._code} has added, replaced or deleted a parameter or submodule of {self.hosted}; the structure "
                "of a hosted module is fixed once it is made. Write to parameters with copy_() or .data instead"
            )
        if self._failed is not None:
            raise InvalidArgumentError(
                f"{self._code} has changed what leads to parameters or submodules of {self.hosted} in a way that "
                f"cannot be followed: {self._failed!r}"
            )
        if self._remembered:
            raise InvalidArgumentError(f"{self._code} of {self.hosted} {self._remembered}")
        for name in self._aliases:
            where = f"set attribute {name!r} of" if name else "put into a container beside a parameter or layer of"
            to = "to " if name else ""
            raise InvalidArgumentError(
                f"{self._code} has {where} {self.hosted} {to}a tensor in the memory of a parameter, but {WHY}. Keep a "
                "copy of it, with clone()"
            )
        for i, name in self._attributes.refused:
            raise InvalidArgumentError(
                f"{self._code} has set attribute {name!r} of parameter {self._name(i)!r} of {self.hosted} to something "
                f"that leads to a parameter or submodule, or lies in the memory of a parameter, but {WHY}. Set it in "
                "the constructor, or keep a copy"
            )
        for i in self._hooked:
            raise InvalidArgumentError(
                f"{self._code} has registered a hook at parameter {self._name(i)!r} of {self.hosted}, and has left it "
                "there. Locally such hooks stay, one for each call; here each call has other tensors in the place of "
                "the parameters. Register it in the constructor, or at what the call computes"
            )
        for i in self._touched:
            if self._tensors[i].grad is not None:
                raise InvalidArgumentError(
                    f"{self._code} has called backward() on what it computed from parameter {self._name(i)!r} of "
                    f"{self.hosted}. Gradients of hosted parameters belong to the pass of a trainer; inside hosted "
                    "code use torch.autograd.grad"
                )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """What can be compared also where it is not a number."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
