"""Local steps: a trainer steps its replica with an optimizer of its own, and pushes only every so often."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import optim

from ps_wire.errors import InvalidArgumentError, TooLargeError
from ps_wire.limits import MAX_REPORTED_NAMES
from ps_wire.numbers import check_finite, check_whole
from ps_wire.numerics.reducer import Kind, Reducer, kind_of
from ps_wire.policies import Policy, Sync
from ps_wire.reported import Reductions, Reported, reported
from trainer_client.replicas.protocols import OpenPass, OwnersOptimizer, check_backward, check_gradients
from trainer_client.session.step_mistakes import check_scaler

if TYPE_CHECKING:
    from trainer_client.pending import Pending
    from trainer_client.replicas.pushing import Pushing
    from trainer_client.session.runs import Run
    from trainer_client.session.stepped import Stepped

_MOST: Final = 1_000_000_000
"""The most local steps between two pushes."""


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """Trainers take steps of their own, and every so often their parameters become the average of all.

    S. U. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019. The step on the owner is that of SGD
    with a learning rate of 1: w - mean(w - w_i) = mean(w_i). With one step between two averages, and SGD without
    momentum as the local optimizer, it is `Sync` with the mean of gradients.

    Attributes:
        every: Local steps between two averages.
    """

    every: int

    def __post_init__(self) -> None:
        check_every(self.every)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the SGD on the owner."""
        return {"lr": 1.0}


@dataclass(frozen=True, slots=True)
class DiLoCo:
    """Trainers take steps of their own, and every so often an outer optimizer steps with their mean difference.

    A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023 (arXiv:2311.08105).
    The difference is that of the parameters before the local steps and after them. The outer optimizer is SGD with
    Nesterov momentum; it runs on the owner. The paper takes AdamW as the local optimizer, and 500 local steps.

    Attributes:
        every: Local steps between two outer steps.
        lr: Learning rate of the outer optimizer.
        momentum: Its momentum; with 0 there is none.
    """

    every: int
    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_every(self.every)
        for name, value in (("lr", self.lr), ("momentum", self.momentum)):
            check_finite(name, value, 0.0)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the SGD on the owner."""
        return {"lr": self.lr, "momentum": self.momentum, "nesterov": self.momentum > 0}


ALL: Final = Sync()
"""Rounds of all trainers that use an optimizer."""

LocalTraining = LocalSGD | DiLoCo
"""How the differences of trainers become a step on the owner."""


class LocalSteps:
    """The local steps of a replica, or of several. Made by `Client.local_steps`, or by `local_steps` of a replica.

        local = await ps.local_steps(replica, torch.optim.AdamW(replica.parameters()), tc.DiLoCo(every=50))
        for x, y in batches:
            loss_fn(replica(x), y).backward()
            await local.step()

    What is pushed is the difference of the parameters that the owner had at the last pull, and those here. The owner
    takes it as a gradient. A pull of the replica discards what has changed here since then. The differences of several
    replicas, on any number of owners, are pushed together, and count in the same round on all owners.

    Attributes:
        inner: The local optimizer, over parameters of the replica.
        optimizer: The optimizer on the owner, a `DistributedOptimizer`.
        every: Local steps between two pushes.
        steps: Local steps since the last push that counted or was dropped.

    Raises:
        InvalidArgumentError: The local optimizer steps no parameter of the replica, `every` is no such number, the
            replica was made with an overlap, or its parameters were written to since the last pull. For several
            replicas: see `Replicas.local_steps`.
    """

    def __init__(self, replica: Pushing, inner: optim.Optimizer, outer: OwnersOptimizer, every: int) -> None:
        check_every(every)
        _check_inner(replica, inner)
        replica.begin_local_steps(outer)
        self.inner = inner
        self.optimizer: Any = outer
        self.every = every
        self.steps = 0
        self._replica = replica
        self._values = _Values()
        self._runs = outer.sessions[0].settings.runs
        # The attempts to push the present difference, and how often parameters were pulled before.
        self._run: Run | None = None
        self._readings: Sequence[int] = ()

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        context: OpenPass | None = None,
        scaler: torch.amp.GradScaler | None = None,
        values: Mapping[str, Any] | None = None,
        reduce: Reductions = "mean",
    ) -> Pending[Stepped | None]:
        """Steps the replica with the local optimizer, and pushes if it is time. `.grad` is None afterwards.

        Args:
            closure: For a local optimizer that needs one, such as LBFGS.
            context: The pass that has the gradients, because its forward has looked up in tables or called owners. Its
                gradients of the local optimizer's parameters are used up; those on owners are for optimizers there. Its
                backward has ended.
            scaler: The scaler of the loss. It unscales the gradients, and skips the local step if one is not finite;
                that counts as a step. Call its `update()` afterwards, as in torch.
            values: Plain values to report, by name, as for `DistributedOptimizer.step`. Those of the steps between two
                pushes are reduced here, and go with the push: their mean or sum, or the latest, as it is then, of those
                that are kept. The owner reduces them again over trainers, each with the same weight.
            reduce: How both reduce them, as there.

        Returns:
            None after a step without a push; after one with a push what `push` returns.

        Raises:
            InvalidArgumentError, TooLargeError: A value cannot be reduced so, or does not fit those that came under its
                name since the last push, or there are too many. Or the pass that is open has the gradients, and was not
                given; or it was given with a closure, or before its backward has ended. No step was taken.
            ContextEndedError, ContextLostError: The pass has ended. No step was taken.
            Exception: The local optimizer raised it. Besides, the exceptions of `push`; the next step pushes again.
        """
        check_scaler(scaler)
        self._notice_pull()
        report = self._values.read(values, reduce)
        parameters = [each for group in self.inner.param_groups for each in group["params"]]
        if context is not None:
            _take_gradients(context, parameters, closure)
        elif closure is None:
            check_gradients(parameters, self._replica.current())
        if scaler is not None:
            scaler.step(self.inner)
        elif closure is not None:
            self.inner.step(closure)
        else:
            self.inner.step()
        self._replica.zero_grad()
        self.steps += 1
        self._values.add(report)
        return self.push() if self.steps >= self.every else self._replica.nothing()

    def push(self, *, values: Mapping[str, Any] | None = None, reduce: Reductions = "mean") -> Pending[Stepped | None]:
        """Pushes the difference now, and takes over the parameters after the step of the owner.

        If its policy drops the difference, that is lost, and the replica has the owner's parameters afterwards. If
        the push fails, the replica keeps its own parameters, and the next push sends the difference to the same
        parameters as this one. One that was cancelled, or has ended with a `DeadlineExceededError` or a
        `SessionLostError`, may have counted. Owners know the pushes that have a difference in common, and count one of
        them. If that was not this one, call `pull` of the replica to begin anew. With several owners, a push that has
        failed after an owner may have counted its difference has to be followed by a `pull`, too.

        Args:
            values: More values to report, as in `step`. Values share the fate of the difference: if it is dropped they
                are lost, and if the push fails they go with the next one, unless a `pull` comes before.
            reduce: How they are reduced.

        Raises:
            InvalidArgumentError: A value does not fit; or the last push has failed, and an owner has counted its
                difference, or may have. Nothing has counted now.
            NonFiniteGradientError: The difference holds NaN or infinity, and the optimizer on the owner refuses these,
                or a codec has no form for them. Nothing was changed on the owner. Call `pull` of the replica.
            PsError: As in `Replica.push`, or in `Replicas.push`.
        """
        self._notice_pull()
        self._values.add(self._values.read(values, reduce))
        if self._run is None:
            self._run, self._readings = self._runs.begin(), self._replica.readings
        return self._replica.push_difference(self.optimizer, self._run, self._pushed, self._values.reduced())

    def _notice_pull(self) -> None:
        """After a push that has failed, a pull from all owners begins anew: what was pushed is discarded here."""
        if self._run is not None and all(map(operator.gt, self._replica.readings, self._readings)):
            self._end_run()

    def _pushed(self) -> None:
        self._end_run()
        self.steps = 0

    def _end_run(self) -> None:
        """The difference has counted, was dropped or is discarded, and its values with it."""
        if self._run is not None:
            self._runs.end(self._run)
        self._run, self._values = None, _Values()

    def __repr__(self) -> str:
        return f"<LocalSteps of {type(self.inner).__name__}, every {self.every}, to {self.optimizer!r}>"


def check_every(every: Any) -> None:
    """Raises `InvalidArgumentError` if this is no number of local steps."""
    check_whole("every", every, 1, _MOST)


def check(replica: Pushing, inner: optim.Optimizer, method: LocalTraining, policy: Policy | None) -> None:
    """Checks all that can be before the optimizer on the owner is made; raises as `Client.local_steps`."""
    if not hasattr(type(replica), "check_local_steps"):
        raise InvalidArgumentError(f"local_steps() takes a replica, not {replica!r}: `await net.replica()` makes one")
    if not isinstance(method, LocalTraining):
        raise InvalidArgumentError(f"the method is tc.LocalSGD(every) or tc.DiLoCo(every), not {method!r}")
    _check_inner(replica, inner)
    replica.check_local_steps()
    if getattr(policy, "reduce", "mean") != "mean":
        raise InvalidArgumentError(f"{type(method).__name__} steps with the mean of differences, not with their sum")


def _check_inner(replica: Pushing, inner: optim.Optimizer) -> None:
    """Raises `InvalidArgumentError` if a local optimizer steps no parameter of the replica."""
    if not isinstance(inner, optim.Optimizer):
        raise InvalidArgumentError(
            f"the local optimizer is one of torch, such as torch.optim.SGD(replica.parameters(), lr=0.1), not {inner!r}"
        )
    mine = {id(each) for each in replica.pulled_parameters}
    if not any(id(each) in mine for group in inner.param_groups for each in group["params"]):
        raise InvalidArgumentError(
            "the local optimizer steps no parameter of the replica: make it of replica.parameters()"
        )


def _take_gradients(context: OpenPass, parameters: Sequence[torch.Tensor], closure: object) -> None:
    """Makes the gradients of a pass `.grad` of parameters, for an optimizer of torch; raises as `LocalSteps.step`."""
    if closure is not None:
        raise InvalidArgumentError("a closure computes gradients by itself; a step takes it, or a context")
    context.check()
    check_backward(context)
    for parameter in parameters:
        parameter.grad = context.gradient(parameter)
    context.drop(parameters)


class _Values:
    """The values of the local steps since the last push, reduced as on the owner. Not safe from several threads."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[str, Kind | None]] = {}
        self._reducers: dict[str, Reducer] = {}
        self._kept: dict[str, Any] = {}

    def read(self, values: Mapping[str, Any] | None, reduce: Reductions) -> dict[str, Reported]:
        """Checks the values of one local step, which `add` takes then; see `LocalSteps.step` for what it raises."""
        made = reported(values, reduce) if values else {}
        for name, each in made.items():
            known, now = self._kinds.get(name), _kind(each)
            if known is not None and known != now:
                raise InvalidArgumentError(
                    f"{name!r} is {known[1] or 'any value'}, reduced by {known[0]!r}, since the last push, and now it "
                    f"is {now[1] or 'any value'}, reduced by {now[0]!r}"
                )
        if len(self._kinds.keys() | made.keys()) > MAX_REPORTED_NAMES:
            raise TooLargeError(f"local steps report at most {MAX_REPORTED_NAMES} names of values between two pushes")
        return made

    def add(self, values: Mapping[str, Reported]) -> None:
        """Adds the values of one local step, as `read` has returned them."""
        for name, each in values.items():
            self._kinds[name] = _kind(each)
            if each.reduce == "keep":
                self._kept[name] = each.value
            else:
                self._reducers.setdefault(name, Reducer(each.reduce)).add(each.value)

    def reduced(self) -> dict[str, Reported]:
        """One value for each name, to be pushed."""
        found = {name: Reported(each.op, each.result) for name, each in self._reducers.items()}
        return found | {name: Reported("keep", value) for name, value in self._kept.items()}


def _kind(value: Reported) -> tuple[str, Kind | None]:
    """What the values under one name have in common."""
    return value.reduce, None if value.reduce == "keep" else kind_of(value.value)
