"""Optimizers that run where the parameters live, shared by all trainers."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import optim
from torch.nn import Parameter
from torch.optim import lr_scheduler

from ps_service.state.cells import Cell, Ledger
from ps_service.state.contexts import Context
from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError
from ps_wire.marks import remote
from ps_wire.refs import Ref

# Optimizers of torch whose step takes sparse gradients; the others raise, some of them halfway.
_TAKES_SPARSE = (optim.SGD, optim.Adagrad, optim.SparseAdam)
# Optimizers whose state has tensors of other shapes than their parameter's.
_FREE_SHAPES = (optim.Adafactor, optim.LBFGS)


class Reads(enum.Enum):
    """What forwards may see of a step: all or nothing, or whatever is there (Hogwild)."""

    CONSISTENT = "consistent"
    INCONSISTENT = "inconsistent"


class NonFinite(enum.Enum):
    """What to do with NaN and infinity in a gradient."""

    APPLY = "apply"
    REFUSE = "refuse"


class Covered(NamedTuple):
    """A parameter an optimizer steps."""

    ref: Ref
    parameter: Parameter
    cell: Cell


class Trial(NamedTuple):
    """What a step on a scratch parameter has shown.

    Attributes:
        kept: What the optimizer keeps for a parameter.
        needed: Whether that must be there before the first step.
    """

    kept: dict[str, Any]
    needed: bool


class HostedOptimizer:
    """A `torch.optim` optimizer over parameters of this owner.

    Args:
        cls: The optimizer's class.
        groups: Its parameter groups: what each covers, and the options that differ from the defaults.
        options: The constructor's keyword arguments.
        reads: Whether forwards may see half a step.
        non_finite: Whether NaN and infinity are refused.
        ledger: Guards the parameters.

    Attributes:
        version: How many steps have been applied.
        covered: Every covered parameter, in the order of the groups.
    """

    def __init__(
        self,
        cls: type[optim.Optimizer],
        groups: Sequence[tuple[Sequence[Covered], Mapping[str, Any]]],
        options: Mapping[str, Any],
        reads: Reads,
        non_finite: NonFinite,
        ledger: Ledger,
    ) -> None:
        self.covered = [covered for members, _ in groups for covered in members]
        self.version = 0
        self._reads = reads
        self._non_finite = non_finite
        self._ledger = ledger
        self.lock = threading.RLock()
        described = [{"params": [each.parameter for each in members], **own} for members, own in groups]
        self.optimizer = cls(described, **options)
        for group in self.optimizer.param_groups:
            self._try(group)

    def step(self, context: Context) -> int:
        """Applies a context's gradients: all of them, or, if anything raises, none.

        Parameters to which the context has brought no gradient are passed over, as in local torch.

        Returns:
            The version after the step.

        Raises:
            ContextEndedError: The context has ended.
            NonFiniteGradientError: A gradient holds NaN or infinity and was to be refused.
            InvalidArgumentError: The optimizer cannot take a sparse gradient.
        """
        with self.lock:
            found = context.gradients_of([each.parameter for each in self.covered])
            present = [(each, grad) for each, grad in zip(self.covered, found, strict=True) if grad is not None]
            if not present:
                return self.version
            self._check(present)
            self._apply(present)
            self.version += 1
            return self.version

    def set_options(self, group: int | None, options: Mapping[str, Any]) -> None:
        """Changes options, such as `lr`, of one parameter group or of all.

        Raises:
            InvalidArgumentError: There is no such group or option, or the optimizer cannot work with the value.
        """
        with self.lock:
            groups = self.optimizer.param_groups
            if group is not None and group >= len(groups):
                raise InvalidArgumentError(f"there is no parameter group {group}; there are {len(groups)}")
            chosen = groups if group is None else [groups[group]]
            known = set(groups[0]) - {"params"}
            for name in options:
                if name not in known:
                    raise InvalidArgumentError(f"the optimizer has no option {name!r}; it has {sorted(known)}")
            for each in chosen:
                trial = self._try({**each, **options})
                states = [self.optimizer.state.get(parameter) for parameter in each["params"]]
                if any(state and trial.kept.keys() - state.keys() for state in states):
                    raise InvalidArgumentError(f"{sorted(options)} cannot be changed any more: steps have been made")
            for each in chosen:
                each.update(options)

    def state_dict(self) -> dict[str, Any]:
        """What `torch.optim.Optimizer.state_dict` gives, as a copy."""
        with self.lock:
            state: dict[str, Any] = _copied(self.optimizer.state_dict())
            return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a state, wholly or not at all.

        Raises:
            InvalidArgumentError: It does not fit the groups or the parameters.
        """
        with self.lock:
            self._check_state(state)
            try:
                self.optimizer.load_state_dict(state)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidArgumentError(f"the state does not fit this optimizer: {error}") from None

    def _check(self, present: list[tuple[Covered, torch.Tensor]]) -> None:
        builtin = _is_torchs(self.optimizer)
        for covered, gradient in present:
            if gradient.is_sparse and builtin and not isinstance(self.optimizer, _TAKES_SPARSE):
                raise InvalidArgumentError(
                    f"{type(self.optimizer).__name__} cannot take the sparse gradient of {covered.ref.parameter!r}; "
                    "use SGD, Adagrad or SparseAdam, or make the embedding with sparse=False"
                )
            if self._non_finite is NonFinite.REFUSE and not _is_finite(gradient):
                raise NonFiniteGradientError(
                    f"the gradient of {covered.ref.parameter!r} holds NaN or infinity; nothing was applied. "
                    "Skip this batch, lower the learning rate, or clip"
                )

    def _apply(self, present: list[tuple[Covered, torch.Tensor]]) -> None:
        parameters = [covered.parameter for covered, _ in present]
        cells = [covered.cell for covered, _ in present]
        with self._ledger.writing(parameters, cells, self._reads is Reads.CONSISTENT):
            undo = None if self._cannot_fail(present) else _Snapshot(self.optimizer, parameters)
            try:
                for covered, gradient in present:
                    covered.parameter.grad = gradient
                self.optimizer.step()
            except BaseException:
                if undo is not None:
                    undo.restore()
                raise
            finally:
                for parameter in parameters:
                    parameter.grad = None

    def _cannot_fail(self, present: list[tuple[Covered, torch.Tensor]]) -> bool:
        """Whether a step is known not to raise halfway, so that no snapshot is needed to make it atomic."""
        optimizer = self.optimizer
        if not _is_torchs(optimizer):
            return False
        dense = not any(gradient.is_sparse for _, gradient in present)
        if isinstance(optimizer, (optim.SGD, optim.Adagrad)):
            plain = all(not group["weight_decay"] and not group.get("momentum") for group in optimizer.param_groups)
            return dense or plain
        if isinstance(optimizer, optim.SparseAdam):
            return all(gradient.is_sparse for _, gradient in present)
        return dense and isinstance(optimizer, (optim.Adam, optim.AdamW, optim.RMSprop, optim.Adamax, optim.NAdam))

    def _try(self, group: Mapping[str, Any]) -> Trial:
        """Makes one step with a group's options on a scratch parameter, because torch looks at most of them only then.

        Raises:
            InvalidArgumentError: It cannot make a step with these options.
        """
        cls: Callable[..., optim.Optimizer] = type(self.optimizer)
        if not _is_torchs(self.optimizer):
            return Trial({}, False)
        like = self.covered[0].parameter
        scratch = Parameter(torch.zeros(1, 1, dtype=like.dtype, device=like.device))
        gradient = torch.zeros_like(scratch)
        scratch.grad = gradient.to_sparse() if cls is optim.SparseAdam else gradient
        try:
            optimizer = cls([scratch])
            fresh = optimizer.state_dict()["state"]
            optimizer.load_state_dict({"state": fresh, "param_groups": [{**group, "params": [0]}]})
            optimizer.step()
        except Exception as error:
            raise InvalidArgumentError(
                f"{type(self.optimizer).__name__} cannot make a step with these options: {type(error).__name__}: {error}"
            ) from None
        return Trial({} if isinstance(optimizer, _FREE_SHAPES) else dict(optimizer.state[scratch]), bool(fresh))

    def _check_state(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or not isinstance(state.get("state"), dict) or "param_groups" not in state:
            raise InvalidArgumentError("an optimizer's state is a dict with 'state' and 'param_groups'")
        found = [len(group["params"]) for group in _described(state["param_groups"])]
        wanted = [len(group["params"]) for group in self.optimizer.param_groups]
        if found != wanted:
            raise InvalidArgumentError(f"the state has groups of {found} parameters, this optimizer has {wanted}")
        for own, group in zip(self.optimizer.param_groups, state["param_groups"], strict=True):
            trial = self._try(group)
            for index, parameter in zip(group["params"], own["params"], strict=True):
                entries = state["state"].get(index)
                if entries is not None or trial.needed:
                    self._check_entries(index, entries, parameter, trial.kept)
        unknown = state["state"].keys() - {index for group in state["param_groups"] for index in group["params"]}
        if unknown:
            raise InvalidArgumentError(f"the state names parameters {sorted(map(str, unknown))} of no group")

    def _check_entries(self, index: int, entries: Any, parameter: Parameter, kept: Mapping[str, Any]) -> None:
        if not isinstance(entries, dict):
            raise InvalidArgumentError(f"the state of parameter {index} is missing, or not a dict")
        for key, example in kept.items():
            if key not in entries or isinstance(example, torch.Tensor) != isinstance(entries[key], torch.Tensor):
                raise InvalidArgumentError(f"the state of parameter {index} has no {key!r}, or not of the right kind")
        if isinstance(self.optimizer, _FREE_SHAPES):
            return
        for key, value in entries.items():
            if isinstance(value, torch.Tensor) and value.numel() != 1 and value.shape != parameter.shape:
                raise InvalidArgumentError(
                    f"state {key!r} of parameter {index} has shape {tuple(value.shape)}, "
                    f"the parameter {tuple(parameter.shape)}"
                )


def _described(groups: Any) -> list[dict[str, Any]]:
    """The parameter groups of a state, if that is what they are."""
    if not isinstance(groups, list) or not all(
        isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups
    ):
        raise InvalidArgumentError("the parameter groups of an optimizer's state are a list of dicts with 'params'")
    return groups


class HostedScheduler:
    """A learning-rate scheduler of `torch.optim.lr_scheduler` that changes a hosted optimizer."""

    def __init__(
        self, cls: type[lr_scheduler.LRScheduler], hosted: HostedOptimizer, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self._hosted = hosted
        with hosted.lock:
            self.scheduler = cls(hosted.optimizer, *args, **kwargs)

    @remote
    def step(self, *args: Any) -> list[Any]:
        """One more epoch, or whatever the trainer counts; returns the learning rates, one per parameter group."""
        with self._hosted.lock:
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
        with self._hosted.lock:
            self.scheduler.load_state_dict(state)

    def _rates(self) -> list[Any]:
        return [group["lr"] for group in self._hosted.optimizer.param_groups]


class _Snapshot:
    """Parameters, and the optimizer's state and options, as they were, to go back to when a step raises halfway."""

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


def _is_torchs(optimizer: optim.Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim.")


def _copied(value: Any) -> Any:
    """A deep copy of containers and tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value


def _is_finite(gradient: torch.Tensor) -> bool:
    values = gradient._values() if gradient.is_sparse else gradient
    return bool(torch.isfinite(values).all())
