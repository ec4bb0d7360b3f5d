"""The modules that one running call uses."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Self

import torch
from torch._C._functorch import maybe_current_level
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd.graph import saved_tensors_hooks

from ps_service.hosting.references import binder
from ps_service.memory.addresses import lies_in, memory_of, storage_of
from ps_service.memory.held import Share, storages
from ps_service.numerics import rng_states
from ps_service.parameters.locks import WouldBlock
from ps_service.passes import torch_patches
from ps_service.passes.binding import results_in
from ps_service.passes.look_up_call import LookUpCall
from ps_service.passes.pass_values import PassNumbers
from ps_service.passes.saved_tensors import Kept, Pinned, Watch, unpack
from ps_service.passes.turn_binding import TurnBinding
from ps_service.passes.view_binding import ViewBinding
from ps_wire.codec.trees import mapped, parts_of
from ps_wire.errors import InvalidArgumentError
from ps_wire.numerics.random import Seeded
from ps_wire.runtime.scopes import current_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from torch import nn

    from ps_service.hosting.leaves import Leaf
    from ps_service.hosting.objects import HostedObject
    from ps_service.memory.held import Held
    from ps_service.parameters.locks import ParameterLocks
    from ps_service.passes.pass_values import PassValues


class CallFrame(LookUpCall):
    """The modules that one call uses: views that it shares with others, or modules that it has to itself meanwhile.

    The modules are in training mode if `training` is true, and in their own modes if it is None. Torch builds a graph
    with `grad`, which a `recorded` call needs. `code` is the function, or the name of the method, that runs; empty for
    code that never writes to parameters. `held` counts the bytes that torch saves for the backward, and `nbytes` is the
    length of the message with the arguments, if that tells how large they are.

    `leaves` are those of the parameters of these modules, and `steps` has for each the number of steps of its parameter
    when the call first used the module. It `uses_others` if its graph may reach other leaves, and `is_held` if code of
    the call will run in its backward, which gives modules the `values` back. These are there once the call has ended.

    A call that returns a future cannot use modules: its code continues in other threads.
    """

    # Calls of plain objects do not need these; a call that binds a module sets them.
    _hooks: saved_tensors_hooks | None = None
    is_held = False
    _expected = 0
    _measured: ViewBinding | None = None
    uses_others = False
    _block: Seeded | None = None
    # By storage; several parameters may be views of one storage.
    _watches: dict[int, list[tuple[Watch, TurnBinding]]]
    _storages: set[int]
    _buffers: set[int]

    def __init__(
        self,
        parameter_locks: ParameterLocks,
        training: bool | None,
        recorded: bool,
        grad: bool = True,
        code: str | Callable[..., Any] = "",
        held: Held | None = None,
        nbytes: int | None = None,
    ) -> None:
        self.leaves: Sequence[Leaf] = ()
        self.steps: Sequence[int] = ()
        self.values: list[PassValues | PassNumbers] = []
        self._parameter_locks = parameter_locks
        self._training = training
        self._recorded = recorded
        self._grad = grad
        self._code = code
        self._held = held
        self._nbytes = nbytes
        self._saved: dict[int, int] = {}
        self._bindings: dict[str, TurnBinding | ViewBinding] = {}

    def __enter__(self) -> Self:
        self._token = binder.set(self)
        self._thread = threading.get_ident()
        self._grad_before = torch.is_grad_enabled()
        if self._grad_before is not self._grad:
            torch._C._set_grad_enabled(self._grad)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._thread = 0
        if self._block is not None:
            self._block.__exit__(*raised)
        if self._hooks is not None:
            self._hooks.__exit__(*raised)
            self._hooks = None  # they refer to this frame, and its leaves would be freed late
        if torch.is_grad_enabled() is not self._grad_before:
            torch._C._set_grad_enabled(self._grad_before)
        binder.reset(self._token)
        has_reached_rows = self.end_look_ups() if self.tables else False
        self._measured = None  # hooks of an open graph may refer to this frame, and must not to a view
        if self._bindings:
            self._settle(raised[0] is not None)
        if self.is_held or self.values:
            block = self._block or Seeded.current()
            if block is not None:
                self.values.append(PassNumbers(block))
        if has_reached_rows and raised[0] is None:
            raise InvalidArgumentError(
                "backward() onto the rows of a table, within a call, steps nothing; return the loss, and let the "
                "caller propagate through it"
            )

    def bind(self, hosted: HostedObject, is_target: bool = False) -> nn.Module:
        """If it `is_target`, the call is one of its own methods, whose caller chooses the mode. Other code finds a
        module, and leaves it, in the mode that it has on this owner, unless the caller asked for evaluation mode."""
        if self._thread != threading.get_ident():
            raise InvalidArgumentError(
                f"{hosted} is lent to a call only while that runs, and in its thread; what runs later or elsewhere "
                "calls it through its reference, with rpc_sync() or rpc_async()"
            )
        known = self._bindings.get(hosted.ref.object_id)
        if known is not None:
            return known.module
        if not self._bindings:
            self._watches, self._storages, self._buffers = {}, set(), set()
        elif self._parameter_locks.this_thread.nonblocking:
            raise WouldBlock  # a call that begins again in a thread must not have changed another module
        if not isinstance(self._code, str):
            self._code = _name(self._code)
        # Inside a transform of torch.func new tensors are wrapped, and other calls would find those.
        with _NO_TRANSFORM if maybe_current_level() is None else temporarily_clear_interpreter_stack():
            binding = self._bound(hosted, is_target, self._code)
        self._bindings[hosted.ref.object_id] = binding
        if self.is_held:
            binding.hold()
        if binding.uses_others:
            self.uses_others = True
        if self.leaves:
            self._add_leaves(binding)
        else:
            self.leaves, self.steps = binding.leaves, binding.steps
        if isinstance(binding, ViewBinding):
            self._storages = self._storages | binding.storages if self._storages else binding.storages
        else:
            self._watch(binding)
            binding.turn.resumed = partial(self._watch, binding)
            # A backward needs copies of these, because other calls may change them.
            self._buffers.update(storage_of(each) for each in binding.internals.found().tensors if not each.is_sparse)
        return binding.module

    def _bound(self, hosted: HostedObject, is_target: bool, code: str) -> TurnBinding | ViewBinding:
        """Binds a module, on a view if that is possible. What torch saves is looked at for modules themselves, and for
        views to count its bytes now and then."""
        views = hosted.views
        scope = current_scope.get()
        nested = bool(self._bindings) or (scope is not None and scope.depth > 0)
        training = self._training if is_target or self._training is False else None
        kind = (code, training, self._recorded)
        binding: TurnBinding | ViewBinding
        if code in hosted.writers or not views.admits(kind):
            binding, expected = TurnBinding(self._parameter_locks, hosted, kind, nested), None
        else:
            binding = ViewBinding(self._parameter_locks, hosted, kind, nested)
            if self._held is None:
                expected = 0
            else:
                expected = None if self._nbytes is None else views.expected_bytes(kind, self._nbytes)
            if expected is None:
                self._measured = binding
        if self._grad and self._hooks is None:
            if expected is not None:
                self._expected += expected
            elif torch_patches.are_hooks_allowed():
                # Not before: code without hosted modules may use all of torch, such as transforms that refuse hooks.
                hooks = saved_tensors_hooks(self._pack, unpack)
                hooks.__enter__()
                self._hooks = hooks
            else:
                self.runs_later()  # the code is inside of a transform
        return binding

    def _add_leaves(self, binding: TurnBinding | ViewBinding) -> None:
        """Adds the leaves of a further module. In turns, modules that share a parameter have one leaf for it."""
        known = {id(each.tensor) for each in self.leaves}
        added = [i for i, each in enumerate(binding.leaves) if id(each.tensor) not in known]
        self.leaves = [*self.leaves, *[binding.leaves[i] for i in added]]
        self.steps = [*self.steps, *[binding.steps[i] for i in added]]

    def _watch(self, binding: TurnBinding) -> None:
        """Notes where the parameters of a module lie now."""
        self._storages = self._storages | set(map(storage_of, binding.parameters))
        for leaf, watch in zip(binding.leaves, binding.changes.watches, strict=True):
            self._watches.setdefault(storage_of(leaf.tensor), []).append((watch, binding))

    @property
    def is_on_view(self) -> bool:
        """Whether the call uses one module, on a view of it."""
        return len(self._bindings) == 1 and isinstance(next(iter(self._bindings.values())), ViewBinding)

    def parameter_behind(self, leaf: torch.Tensor) -> tuple[HostedObject, str] | None:
        for binding in self._bindings.values():
            name = binding.parameter_behind(leaf)
            if name is not None:
                return binding.hosted, name
        return None

    def leaves_of_parameters(self) -> dict[int, torch.Tensor]:
        return {id(leaf.parameter): leaf.tensor for leaf in self.leaves}

    def meets(self, value: Any) -> None:
        self.uses_others = True  # it may hold leaves

    def may_stay(self, result: Any) -> bool:
        """Whether a result can stay on the owner as it is, with its own containers and tensors: not if it has a
        history, holds parts of a view, or shares memory with tensors of modules, which other calls may change."""
        if not self._bindings:
            return not self._recorded or not any(map(_has_history, parts_of(result)))
        return not self._holds(result, self._kept_after())

    def lends(self, value: Any) -> bool:
        if not self._bindings:
            return False
        buffers = [each for binding in self._bindings.values() for each in binding.internals.buffers()]
        return self._holds(value, {*self._storages, *map(memory_of, buffers)})

    def _holds(self, value: Any, taken: Set[int] | None) -> bool:
        lent = {each for binding in self._bindings.values() for each in binding.private_ids()}
        for part in parts_of(value):
            if id(part) in lent or _has_history(part):
                return True
            if isinstance(part, torch.Tensor) and not self._is_other_leaf(part) and lies_in(part, taken):
                return True
        return False

    def _is_other_leaf(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a leaf of torch's graph, and shares no memory with parameters."""
        if not tensor.requires_grad or tensor.grad_fn is not None:
            return False
        return all(storage.data_ptr() not in self._storages for storage in storages(tensor))

    def _kept_after(self) -> Set[int] | None:
        """The memory of what the modules keep after the call, as `memory_of`; None if that is not known."""
        taken: Set[int] = self._storages
        are_all = True
        for binding in self._bindings.values():
            tensors, is_all = binding.kept()
            if tensors:
                taken = taken | set(map(memory_of, tensors))
            are_all &= is_all
        return taken if are_all else None

    def own(self, result: Any) -> Any:
        """The result, with copies of tensors that share memory with a module, because other calls may change those.
        Looks through the graph of a recorded result, and raises as `Binding.inspect`."""
        taken = self._kept_after()
        if self._recorded:
            is_one = isinstance(result, torch.Tensor) and result.requires_grad
            roots = [result] if is_one else results_in(result)
            known = set(map(id, map(_tensor, self.leaves)))
            for binding in self._bindings.values():
                binding.inspect(roots, known)
                self.uses_others |= binding.uses_others
                self.is_held |= binding.is_held
        if isinstance(result, torch.Tensor):
            return result.clone() if lies_in(result, taken) else result
        return mapped(result, lambda tensor: tensor.clone() if lies_in(tensor, taken) else tensor)

    def lift(self, pack: Any) -> bool:
        if pack == self._pack:
            self.runs_later()  # every parameter of the call is pinned instead
            return True
        return False

    def runs_later(self) -> None:
        if not self.is_held:
            self.is_held = True
            for binding in self._bindings.values():
                binding.hold()

    def recomputes(self) -> None:
        # Torch's own generator belongs to all calls. On a GPU torch notes the states of its generators itself.
        is_here = self._grad and self._thread == threading.get_ident() and torch_patches.are_hooks_allowed()
        if is_here and not torch._C._len_torch_dispatch_stack() and not torch.cuda.is_initialized():
            self._block = Seeded(int(torch.randint(2**63 - 1, (), device="cpu")))
            self._block.__enter__()

    def sets_hooks(self, pack: Any) -> None:
        if pack != self._pack:
            self.runs_later()  # those of other code run in the backward

    def sets_attribute(self) -> None:
        for binding in self._bindings.values():
            binding.has_set = True

    def _settle(self, raised: bool) -> None:
        """Gives the modules back, and applies the changes of the call."""
        failed: BaseException | None = None
        bindings = list(self._bindings.values())[::-1]
        self._bindings.clear()
        self._watches.clear()
        unsettled = []
        for binding in bindings:
            try:
                if binding.give_back():
                    unsettled.append(binding)
            except Exception as error:
                failed = failed or error  # the others are given back, too
            if binding.values is not None:
                self.values.insert(0, binding.values)  # in the order in which the call has bound the modules
        for binding in unsettled:
            try:
                binding.settle(raised)
            except RuntimeError as error:
                failed = failed or error
        if failed is not None and not raised:
            raise failed

    def _pack(self, tensor: torch.Tensor) -> Kept | Pinned:
        # Called for every tensor a forward saves for its backward.
        if tensor.is_sparse:
            return self._counted(tensor._values(), tensor)
        try:
            storage = storage_of(tensor)
        except RuntimeError:
            # Inside torch.func.jvp: zeros without memory, or a tensor that is saved again without its wrapper.
            self.lift(self._pack)
            return Kept(tensor)
        watches = self._watches.get(storage)
        if watches is None and storage in self._storages:
            return Kept(tensor)  # steps see that its memory is used
        if watches is not None:
            saved = Pinned(tensor, [watch for watch, _ in watches])
            for _, binding in watches:
                binding.changes.saved.append(saved)
            return saved
        if tensor.requires_grad and tensor.grad_fn is None:
            self.uses_others = True
        kept = tensor.clone() if storage in self._buffers else tensor
        return self._counted(kept, kept)

    def _counted(self, stored: torch.Tensor, tensor: torch.Tensor) -> Kept:
        if self._held is None:
            return Kept(tensor)
        share = self._held.share(stored.untyped_storage())
        self._saved[share.key] = share.nbytes
        return Kept(tensor, share)

    def count_saved(self) -> list[Share]:
        """Counts what torch has saved, as far as that was not counted while the call ran. Called at its end."""
        measured = self._measured
        if measured is not None and len(self._bindings) == 1 and self._nbytes is not None:
            measured.views.note_saved(measured.kind, self._nbytes, sum(self._saved.values()))
        return [Share(self._held, self._expected)] if self._held is not None and self._expected else []


torch_patches.install()
rng_states.install(torch_patches.note_recomputation)


def _name(function: Callable[..., Any]) -> str:
    """The name of the function, for its bindings; empty for functions of torch, which write only where asked to."""
    function = function.func if isinstance(function, partial) else function
    return f"{function.__module__}.{getattr(function, '__qualname__', '')}" if hasattr(function, "__module__") else ""


_NO_TRANSFORM: Final = nullcontext()
_tensor = attrgetter("tensor")


def _has_history(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.grad_fn is not None
