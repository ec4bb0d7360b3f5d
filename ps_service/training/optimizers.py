"""Optimizers that run where the parameters live, shared by all trainers."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import optim
from torch.nn import Parameter
from torch.optim import lr_scheduler

from ps_service.measures.latency import Latency
from ps_service.passes.gradients import is_finite
from ps_service.passes.staleness import StepCounter
from ps_service.training import sparse_rules, sparse_sgd
from ps_wire.decorators import remote
from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError
from ps_wire.numerics.optimizer_validator import OptimizerValidator, is_torchs
from ps_wire.runtime.locks import ReportingLock

if TYPE_CHECKING:
    from ps_service.parameters.locks import ParameterLocks
    from ps_service.parameters.state import ParameterState
    from ps_service.passes.contexts import PassContext
    from ps_wire.refs import Ref


class Reads(enum.Enum):
    """What forwards see of a running step: all or nothing of it, or any part of it (Hogwild)."""

    CONSISTENT = "consistent"
    INCONSISTENT = "inconsistent"


class NonFinite(enum.Enum):
    """What to do with NaN and infinity in a gradient."""

    APPLY = "apply"
    REFUSE = "refuse"


class Covered(NamedTuple):
    """A parameter that an optimizer steps."""

    ref: Ref
    parameter: Parameter
    parameter_state: ParameterState


class HostedOptimizer:
    """A `torch.optim` optimizer over parameters of this owner.

    Args:
        cls: The optimizer's class.
        groups: Its parameter groups: the covered parameters, and the options that differ from the defaults.
        options: The constructor's keyword arguments.
        reads: Whether forwards may see part of a step.
        non_finite: Whether NaN and infinity are refused.
        parameter_locks: Guards the parameters.

    Attributes:
        version: Number of steps applied.
        latency: Moving average of the time a step takes.
        is_torchs: Whether its class is one of torch's own.
        counter: Counts its steps for the metrics.
        covered: Every covered parameter, in the order of the groups.
    """

    def __init__(
        self,
        cls: type[optim.Optimizer],
        groups: Sequence[tuple[Sequence[Covered], Mapping[str, Any]]],
        options: Mapping[str, Any],
        reads: Reads,
        non_finite: NonFinite,
        parameter_locks: ParameterLocks,
    ) -> None:
        self.covered = [covered for members, _ in groups for covered in members]
        self.version = 0
        self._reads = reads
        self._non_finite = non_finite
        self._parameter_locks = parameter_locks
        self.lock = ReportingLock()
        self.latency = Latency()
        self.counter = StepCounter()
        described = [{"params": [each.parameter for each in members], **own} for members, own in groups]
        self.optimizer = cls(described, **options)
        self.is_torchs = is_torchs(self.optimizer)
        self._validator = OptimizerValidator(self.optimizer, options)

    def step(self, context: PassContext) -> int:
        """Applies a context's gradients: all of them, or, if anything raises, none.

        Parameters without a gradient in the context are skipped, as in local torch.

        Returns:
            The version after the step.

        Raises:
            ContextEndedError: The context has ended.
            NonFiniteGradientError: A gradient holds NaN or infinity, and the optimizer refuses those.
            InvalidArgumentError: The optimizer cannot take a sparse gradient.
        """
        with self._parameter_locks.alone(self.lock), self.latency.measured():
            present = self._present(context)
            if not present:
                return self.version
            self._check(present)
            self._apply(present, context)
            self.version += 1
            return self.version

    def check(self, context: PassContext) -> None:
        """Checks whether a context's gradients can be applied, without applying them.

        Raises:
            The exceptions of `step`.
        """
        self._check(self._present(context))

    def set_options(self, group: int | None, options: Mapping[str, Any]) -> None:
        """Changes options, such as `lr`, of one parameter group or of all.

        Raises:
            InvalidArgumentError: There is no such group or option, or the optimizer refuses the value.
        """
        with self.lock:
            groups = self.optimizer.param_groups
            if group is not None and group >= len(groups):
                raise InvalidArgumentError(f"there is no parameter group {group}; there are {len(groups)}")
            chosen = groups if group is None else [groups[group]]
            self._validator.check_options(chosen, options)
            for each in chosen:
                each.update(options)

    def state_dict(self) -> dict[str, Any]:
        """A copy of what `torch.optim.Optimizer.state_dict` returns."""
        with self.lock:
            state: dict[str, Any] = _copied(self.optimizer.state_dict())
            return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state, entirely or not at all.

        Raises:
            InvalidArgumentError: It does not fit the groups or the parameters.
        """
        with self.lock:
            self._validator.check_state(state)
            try:
                self.optimizer.load_state_dict(state)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidArgumentError(f"the state does not fit this optimizer: {error}") from None

    def _present(self, context: PassContext) -> list[tuple[Covered, torch.Tensor]]:
        """The covered parameters that have a gradient in a context."""
        found = context.gradients_of([each.parameter for each in self.covered])
        return [(each, grad) for each, grad in zip(self.covered, found, strict=True) if grad is not None]

    def _check(self, present: list[tuple[Covered, torch.Tensor]]) -> None:
        if self.is_torchs:
            self._check_layouts({id(covered.parameter): (covered, gradient) for covered, gradient in present})
        for covered, gradient in present:
            if self._non_finite is NonFinite.REFUSE and not is_finite(gradient):
                raise NonFiniteGradientError(
                    f"the gradient of {covered.ref.parameter!r} on owner {covered.ref.owner!r} holds NaN or infinity; "
                    "nothing was applied. "
                    "Skip this batch, lower the learning rate, or clip"
                )

    def _check_layouts(self, present: Mapping[int, tuple[Covered, torch.Tensor]]) -> None:
        """Refuses gradients whose layout torch would refuse in the middle of a step."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                covered, gradient = present.get(id(parameter), (None, None))
                if covered is None or gradient is None:
                    continue
                reason = sparse_rules.refusal(self.optimizer, group, parameter, gradient)
                if reason:
                    layout = "sparse" if gradient.is_sparse else "dense"
                    raise InvalidArgumentError(
                        f"{type(self.optimizer).__name__} cannot take the {layout} gradient of "
                        f"{covered.ref.parameter!r}: it {reason}"
                    )

    def _apply(self, present: list[tuple[Covered, torch.Tensor]], context: PassContext) -> None:
        parameters = [covered.parameter for covered, _ in present]
        parameter_states = [covered.parameter_state for covered, _ in present]
        consistent = self._reads is Reads.CONSISTENT
        with (
            self._parameter_locks.stepping(parameter_states),
            self._parameter_locks.writing(parameters, parameter_states, consistent),
        ):
            whole = self.is_torchs and sparse_rules.never_half_done(self.optimizer)
            undo = None if whole else _Snapshot(self.optimizer, parameters)
            try:
                scattered = self._scattered(present)
                for covered, gradient in present:
                    if id(covered.parameter) not in scattered:
                        covered.parameter.grad = gradient
                # Called even with no gradient left: hooks and schedulers count the steps.
                self.optimizer.step()
                for covered, gradient in present:
                    if id(covered.parameter) in scattered:
                        sparse_sgd.apply(covered.parameter, gradient, scattered[id(covered.parameter)])
                    elif gradient.is_sparse and self.is_torchs:
                        sparse_rules.compact(self.optimizer, covered.parameter)
                self.counter.count(context.stepped(parameters, parameter_states))
                for parameter_state in parameter_states:
                    parameter_state.steps += 1
            except BaseException:
                if undo is not None:
                    undo.restore()
                raise
            finally:
                for parameter in parameters:
                    parameter.grad = None

    def _scattered(self, present: list[tuple[Covered, torch.Tensor]]) -> dict[int, Mapping[str, Any]]:
        """The parameter groups, by identity of the parameter, of gradients that are applied row by row."""
        rows = {id(covered.parameter): gradient for covered, gradient in present if gradient.is_sparse}
        if not rows:
            return {}
        return {
            id(parameter): group
            for group in self.optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in rows and sparse_sgd.can_apply(self.optimizer, group, rows[id(parameter)])
        }


class HostedScheduler:
    """A scheduler of `torch.optim.lr_scheduler` for a hosted optimizer."""

    def __init__(
        self, cls: type[lr_scheduler.LRScheduler], hosted: HostedOptimizer, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self._hosted = hosted
        with hosted.lock:
            self.scheduler = cls(hosted.optimizer, *args, **kwargs)

    @remote
    def step(self, *args: Any) -> list[Any]:
        """Steps the scheduler; returns the learning rates, one per parameter group."""
        with self._hosted.lock:
            # Torch warns if the optimizer has not stepped; this owner's part of it may have had no gradients yet.
            self.scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]
            self.scheduler.step(*args)
            return self._rates()

    @remote
    def get_last_lr(self) -> list[Any]:
        """The learning rates now, one per parameter group."""
        with self._hosted.lock:
            return self._rates()

    def state_dict(self) -> dict[str, Any]:
        with self._hosted.lock:
            state: dict[str, Any] = _copied(self.scheduler.state_dict())
            return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state, entirely or not at all.

        Raises:
            InvalidArgumentError: It is not the state of a scheduler of this class.
        """
        with self._hosted.lock:
            # Torch would overwrite any attribute of the scheduler that the state names.
            known = self.scheduler.state_dict()
            if known.keys() != state.keys():
                raise InvalidArgumentError(f"a state of this scheduler has {sorted(known)}, not {sorted(state)}")
            for key, value in state.items():
                if not _is_like(value, known[key]):
                    raise InvalidArgumentError(f"{key!r} of a scheduler's state cannot be {value!r}")
            # A Counter, as in MultiStepLR, is sent as a dict.
            self.scheduler.load_state_dict(
                {key: Counter(value) if isinstance(known[key], Counter) else value for key, value in state.items()}
            )

    def _rates(self) -> list[Any]:
        return [group["lr"] for group in self._hosted.optimizer.param_groups]


class _Snapshot:
    """A copy of the parameters and the optimizer's state and options, to restore when a step raises halfway."""

    def __init__(self, optimizer: optim.Optimizer, parameters: Sequence[Parameter]) -> None:
        self._optimizer = optimizer
        self._values = [(parameter, parameter.data.clone()) for parameter in parameters]
        self._state = {parameter: _copied(optimizer.state[parameter]) for parameter in list(optimizer.state)}
        self._options = [
            {key: _copied(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]

    def restore(self) -> None:
        for parameter, value in self._values:
            parameter.data.copy_(value)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        for group, options in zip(self._optimizer.param_groups, self._options, strict=True):
            members = group["params"]
            group.clear()
            group.update(params=members, **options)


def _is_like(value: Any, example: Any) -> bool:
    """Whether a value has the type of an example (numbers of any type match, and sequences whose items match)."""
    if example is None:
        return True
    if isinstance(example, (list, tuple)):
        alike = isinstance(value, (list, tuple)) and len(value) == len(example)
        return alike and all(map(_is_like, value, example))
    if isinstance(example, (int, float)) and not isinstance(example, bool):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, dict) if isinstance(example, dict) else type(value) is type(example)


def _copied(value: Any) -> Any:
    """A deep copy of containers and tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value
