"""Optimizers that run where the parameters live, shared by all trainers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import optim

from ps_service.measures.pace import Pace
from ps_service.parameters.locks import StepLock
from ps_service.passes.gradients import is_finite
from ps_service.passes.staleness import StepCounter
from ps_service.tables.optimizer import RowOptimizer
from ps_service.tables.stand_in import AllRows
from ps_service.training import foreach_steps, sparse_rules, torch_step
from ps_service.training.copies import StepUndo, copied
from ps_service.training.reported_values import ReportedValues
from ps_service.training.spread import WHOLE
from ps_service.training.step_access import StepAccess
from ps_wire.errors import InternalError, InvalidArgumentError, NonFiniteGradientError
from ps_wire.numerics.optimizer_validator import OptimizerValidator, is_torchs
from ps_wire.runtime.latency import Latency

if TYPE_CHECKING:
    from ps_service.hosting.objects import HostedObject
    from ps_service.parameters.locks import ParameterLocks
    from ps_service.parameters.state import ParameterState
    from ps_service.passes.pass_context import PassContext
    from ps_service.training.aggregator import Aggregator
    from ps_service.training.round_gradients import RoundGradients
    from ps_wire.attempts import Attempt
    from ps_wire.refs import Ref


class Covered(NamedTuple):
    """A parameter that an optimizer steps."""

    ref: Ref
    parameter: torch.Tensor
    parameter_state: ParameterState

    def __str__(self) -> str:
        return str(self.parameter.table) if isinstance(self.parameter, AllRows) else repr(self.ref.parameter)


Present = tuple[Covered, int, torch.Tensor]
"""A covered parameter, the number of its parameter group, and its gradient."""

Note = Callable[["HostedOptimizer", int, Sequence[Present]], None]
"""Is told an optimizer, the version that a step gives it, and the gradients of the step."""

_NUMBERS: Final = itertools.count()

_NOTHING: Final = object()

_MOST_OWNERS: Final = 1024
"""The most owners whose versions are remembered."""

_PARAMETER: Final = attrgetter("parameter")


class HostedOptimizer:
    """A `torch.optim` optimizer over parameters of this owner.

    If it is `consistent`, forwards see all or nothing of a step, and else any part of it (Hogwild). The lock is held
    while it steps, and while its options or its state change. `version` counts the steps that were applied, `counter`
    and `pace` do so for the metrics and for the status. `trainers` has those that use it as keys. `rounds` collects
    gradients for its policy; it is None if it has none, and every step is applied by itself. `aggregator` is the same,
    also after a policy that it has no more. `beside` has versions that its parts on other owners have reached. `spread`
    says what it is a part of, and `refuses_non_finite` whether it refuses gradients with NaN or infinity.
    """

    spread = WHOLE

    def __init__(
        self,
        cls: type[optim.Optimizer],
        groups: Sequence[tuple[Sequence[Covered], Mapping[str, Any]]],
        options: Mapping[str, Any],
        consistent: bool,
        refuses_non_finite: bool,
        parameter_locks: ParameterLocks,
    ) -> None:
        self.covered = [covered for members, _ in groups for covered in members]
        self.parameters = [covered.parameter for covered in self.covered]
        self.parameter_states = [covered.parameter_state for covered in self.covered]
        self._group_of = [number for number, (members, _) in enumerate(groups) for _ in members]
        self.number = next(_NUMBERS)
        self.object_id = ""
        self.version = 0
        self.is_consistent = consistent
        self.refuses_non_finite = refuses_non_finite
        self._parameter_locks = parameter_locks
        self.lock = StepLock(parameter_locks.this_thread)
        self.latency = Latency()
        self.counter = StepCounter()
        self.pace = Pace()
        described = [{"params": [each.parameter for each in members], **own} for members, own in groups]
        self.optimizer = cls(described, **options)
        self.is_torchs = is_torchs(self.optimizer)
        self._validator = OptimizerValidator(self.optimizer, options)
        self.title = "the optimizer"
        self.reported = ReportedValues()
        self.beside: dict[str, int] = {}
        self.trainers: dict[bytes, None] = {}
        self.rounds: Aggregator | None = None
        self.aggregator: Aggregator | None = None
        self.is_removed = False
        self._failure: str | None = None

    def step(self, context: PassContext | RoundGradients, note: Note | None = None) -> int:
        """Applies the gradients of a context or a push: all of them, or, if anything raises, none.

        Nothing is applied if another attempt of the pass has made this step. Returns the version after the step, also
        then, unless it is not known any more; then the present one. Raises
        `ContextEndedError`, `NonFiniteGradientError` if the optimizer refuses NaN and infinity, and
        `InvalidArgumentError` if it cannot take a sparse gradient.
        """
        with self.lock:
            attempt = context.attempt
            again = attempt is not None and attempt.was_applied(self.number)
            applied = not again and self.apply(context, note)
            self.version += applied
            return self.version if attempt is None else self._passed(attempt, applied)

    def stepping(self, context: PassContext, note: Note | None = None) -> Iterator[int]:
        """Does what `step` does in two parts, so that an answer need not wait for the arithmetic. What it steps with is
        told to `note` before the version comes.

        The version comes when only a want of memory can stop the step. The parameters are written when the iterator
        goes on, and until then no forward reads them. If that fails, the next step says so. Steps of other kinds, and
        `inconsistent` ones, are whole before the version comes.
        """
        with self.lock:
            attempt = context.attempt
            again = attempt is not None and attempt.was_applied(self.number)
            applying = iter(()) if again else self._applying(context, self.is_consistent, note)
            applied = next(applying, _NOTHING) is not _NOTHING
            self.version += applied
            version = self.version if attempt is None else self._passed(attempt, applied)
            try:
                yield version
                next(applying, None)
            except BaseException as failure:
                self._failure = repr(failure)
                raise

    def _passed(self, attempt: Attempt, applied: bool) -> int:
        """Notes a step of an attempt. Returns the version after it."""
        attempt.passed(self.number, applied, self.version)
        return attempt.version_of(self.number, self.version)

    def end(self) -> None:
        """It was removed: steps that wait for a round are refused, and so are later ones."""
        self.is_removed = True
        self.reported.end()
        if self.aggregator is not None:
            self.aggregator.end()

    def told(self, beside: Mapping[str, int]) -> None:
        """Its parts on other owners have reached these versions."""
        for owner, version in beside.items():
            if owner in self.beside or len(self.beside) < _MOST_OWNERS:
                self.beside[owner] = max(version, self.beside.get(owner, 0))

    def set_options(self, group: int | None, options: Mapping[str, Any]) -> None:
        """Changes options, such as `lr`, of one parameter group or of all. Raises `InvalidArgumentError` if there is no
        such group or option, or the optimizer refuses the value."""
        with self.lock:
            groups = self.optimizer.param_groups
            if group is not None and group >= len(groups):
                raise InvalidArgumentError(f"there is no parameter group {group}; there are {len(groups)}")
            chosen = groups if group is None else [groups[group]]
            self._validator.check_options(chosen, options)
            if isinstance(self.optimizer, RowOptimizer):
                self.optimizer.check_options(options)
            for each in chosen:
                each.update(options)

    def state_dict(self) -> dict[str, Any]:
        """A copy of what `torch.optim.Optimizer.state_dict` returns."""
        with self.lock:
            state: dict[str, Any] = copied(self.optimizer.state_dict())
            return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state, entirely or not at all. Raises `InvalidArgumentError` if it does not fit."""
        with self.lock:
            self._validator.check_state(state)
            if isinstance(self.optimizer, RowOptimizer):
                self.optimizer.check_groups(state["param_groups"])
            try:
                self.optimizer.load_state_dict(state)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidArgumentError(f"the state does not fit this optimizer: {error}") from None
            self._failure = None

    def check(self, gradients: PassContext | RoundGradients) -> list[Present]:
        """The checked gradients of a pass, a push or a round for covered parameters. Raises as `step`."""
        present = []
        for covered, group, gradient in zip(
            self.covered, self._group_of, gradients.gradients_of(self.parameters), strict=True
        ):
            if gradient is not None:
                present.append((covered, group, gradient))
        if present:
            self._check_layouts(present)
            if self.refuses_non_finite:
                self._check_finite(present)
        return present

    def groups(self) -> list[list[Covered]]:
        """Its parameters, by parameter group."""
        groups: list[list[Covered]] = [[] for _ in self.optimizer.param_groups]
        for covered, group in zip(self.covered, self._group_of, strict=True):
            groups[group].append(covered)
        return groups

    def apply(self, gradients: PassContext | RoundGradients, note: Note | None = None) -> bool:
        """Applies gradients, if there are any, with the lock held. Restores everything if the step raises."""
        return len(list(self._applying(gradients, False, note))) > 0

    def _applying(
        self, gradients: PassContext | RoundGradients, ahead: bool, note: Note | None = None
    ) -> Iterator[None]:
        """Does what `apply` does, and pauses if there are gradients: `ahead` of the arithmetic where that cannot be
        refused any more, and else at the end."""
        if (failure := self._failure) is not None:
            self._failure = None
            raise InternalError(
                f"step {self.version} of this optimizer failed after its answer, and may have been made in part: "
                f"{failure}. Load a state of the module and of the optimizer before you go on"
            )
        began, nbytes = (time.perf_counter(), time.thread_time()), gradients.gradient_bytes
        present = self.check(gradients)
        if not present:
            return
        parameters, parameter_states = [], []
        for covered, _, _ in present:
            parameters.append(covered.parameter)
            parameter_states.append(covered.parameter_state)
        access = StepAccess(self._parameter_locks, parameters, parameter_states, self.is_consistent)
        if ahead and (parts := self._parts(present)) is not None:
            with access:
                self.count(parameters, parameter_states, gradients)
                if note is not None:
                    note(self, self.version + 1, present)
                paused = time.perf_counter(), time.thread_time()
                yield
                began = began[0] + time.perf_counter() - paused[0], began[1] + time.thread_time() - paused[1]
                with torch.no_grad():
                    for part in parts:
                        part()
            self.latency.end(began, nbytes)
            return
        told = present if note is None else noted(present)
        with access:
            undo = None if sparse_rules.never_half_done(self.optimizer) else StepUndo(self.optimizer, parameters)
            try:
                self.write(present)
                self.count(parameters, parameter_states, gradients)
            except BaseException:
                if undo is not None:
                    undo.restore()
                raise
            if note is not None:
                note(self, self.version + 1, told)
        self.latency.end(began, nbytes)
        yield

    def count(
        self,
        parameters: Sequence[torch.Tensor],
        states: Sequence[ParameterState],
        gradients: PassContext | RoundGradients,
    ) -> None:
        """Notes that these parameters were stepped."""
        staleness = gradients.stepped(parameters, states)
        self.counter.count(staleness)
        self.pace.count(None, staleness)
        for state in states:
            state.steps += 1

    def _parts(self, present: Sequence[Present]) -> list[Callable[[], None]] | None:
        """The parts of the step where `foreach_steps` can make it."""
        if not torch_step.is_plain(self.optimizer):
            return None
        covered, groups, gradients = zip(*present, strict=True)
        return foreach_steps.plan(self.optimizer, zip(map(_PARAMETER, covered), groups, gradients, strict=True))

    def write(self, present: Sequence[Present]) -> None:
        """Steps the parameters, which the caller has to itself: by `foreach_steps` or by torch, but for rows of tables
        that torch refuses.

        Torch finds the gradients at the parameters. They are removed again, as other optimizers may bring theirs.
        """
        if present and (parts := self._parts(present)) is not None:
            with torch.no_grad():
                for part in parts:
                    part()
            return
        groups, by_rows, sparse, taken = self.optimizer.param_groups, [], [], set()
        try:
            for covered, group, gradient in present:
                parameter, options = covered.parameter, groups[group]
                if id(gradient) in taken:
                    gradient = gradient.clone()  # parameters that are added share it, and torch may write to it
                taken.add(id(gradient))
                if gradient.is_sparse and self.is_torchs:
                    if options.get("fused") and sparse_rules.can_step_rows(self.optimizer, options, gradient):
                        by_rows.append((parameter, gradient, options))
                        continue
                    if options.get("momentum"):
                        sparse.append(parameter)
                elif gradient.layout is torch.strided and gradient.stride() != parameter.stride():
                    # Torch's fused kernels take the strides of the parameter for granted. Torch gives gradients that
                    # layout where it accumulates them at leaves, and no such node runs here.
                    gradient = torch.empty_like(parameter.data, dtype=gradient.dtype).copy_(gradient)
                parameter.grad = gradient
            # Called even with no gradient left: hooks and schedulers count the steps.
            torch_step.step(self.optimizer)
            for parameter, gradient, options in by_rows:
                sparse_rules.step_rows(parameter, gradient, options)
            for parameter in sparse:
                sparse_rules.compact(self.optimizer, parameter)
        finally:
            for covered, _, _ in present:
                covered.parameter.grad = None

    def _check_layouts(self, present: Sequence[Present]) -> None:
        """Refuses gradients that torch would refuse in the middle of a step, and options that tables would."""
        if not self.is_torchs:
            if isinstance(self.optimizer, RowOptimizer):
                self.optimizer.check_step()
            return
        groups, takes_dense = self.optimizer.param_groups, not isinstance(self.optimizer, optim.SparseAdam)
        for covered, group, gradient in present:
            if takes_dense and not gradient.is_sparse and not groups[group].get("momentum"):
                continue  # the usual case: nothing is sparse
            reason = sparse_rules.refusal(self.optimizer, groups[group], covered.parameter, gradient)
            if reason:
                layout = "sparse" if gradient.is_sparse else "dense"
                raise InvalidArgumentError(
                    f"{type(self.optimizer).__name__} cannot take the {layout} gradient of "
                    f"{covered.ref.parameter!r}: it {reason}"
                )

    def _check_finite(self, present: Sequence[Present]) -> None:
        for covered, _, gradient in present:
            if not is_finite(gradient):
                raise NonFiniteGradientError(
                    f"the gradient of {covered} on owner {covered.ref.owner!r} holds NaN or infinity; its "
                    "optimizer has applied nothing. Skip this batch, lower the learning rate, or clip"
                )


def noted(present: Sequence[Present]) -> list[Present]:
    """The gradients of a step for those that are told of it afterwards: copies, as torch may write to them. Nobody
    writes to those of tables, of which only the keys are wanted."""
    return [
        (covered, group, gradient if isinstance(covered.parameter, AllRows) else gradient.clone())
        for covered, group, gradient in present
    ]


def optimizer_of(hosted: HostedObject) -> HostedOptimizer:
    """The optimizer that a hosted object is. Raises `InvalidArgumentError` if it is something else."""
    if not isinstance(hosted.value, HostedOptimizer):
        raise InvalidArgumentError(f"{hosted} is not an optimizer")
    return hosted.value
