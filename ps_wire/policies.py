"""Policies: when the gradients of trainers count, and what becomes of stale ones. Values that both sides know.

A policy belongs to one optimizer. Trainers make it, it travels as plain values, and the owner's rounds follow it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from ps_wire.close_names import suggesting
from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import check_finite, check_whole
from ps_wire.shown import shown

Reduce = Literal["mean", "sum"]
Late = Literal["drop", "next"]

_MOST: Final = 1_000_000
"""Largest number of trainers, gradients or steps that a policy may name."""


@suggesting
@dataclass(frozen=True, slots=True)
class Apply:
    """Stale gradients count like fresh ones."""

    kind: ClassVar[str] = "apply"


@suggesting
@dataclass(frozen=True, slots=True)
class Scale:
    """A gradient of staleness t is divided by t, if t is at least 1.

    Staleness-aware asynchronous SGD: W. Zhang, S. Gupta, X. Lian, J. Liu, "Staleness-aware Async-SGD for Distributed
    Deep Learning", IJCAI 2016. The paper divides the learning rate, which for SGD is the same. Optimizers that divide
    by the size of gradients, such as Adam, undo most of it.
    """

    kind: ClassVar[str] = "scale"


@suggesting
@dataclass(frozen=True, slots=True)
class Reject:
    """A gradient that is more than `after` steps old does not count. Its trainer is told.

    Attributes:
        after: The largest staleness that still counts, in steps.
    """

    kind: ClassVar[str] = "reject"
    after: int

    def __post_init__(self) -> None:
        check_whole("after", self.after, 0, _MOST)


@suggesting
@dataclass(frozen=True, slots=True)
class Compensate:
    """Corrects a stale gradient to first order: g + lambda * g * g * (w_now - w_read), elementwise.

    DC-ASGD: S. Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017. The
    owner keeps copies of the parameters after the last 16 steps, and of the rows of tables those that changed between
    them; older gradients do not count. Whatever else writes to a parameter counts as a step: other optimizers, a load
    of the module's state, and its own code.

    Attributes:
        lambda_: Strength of the correction.
    """

    kind: ClassVar[str] = "compensate"
    lambda_: float = 0.04

    def __post_init__(self) -> None:
        check_finite("lambda_", self.lambda_, 0.0)


Stale = Apply | Scale | Reject | Compensate


@suggesting
@dataclass(frozen=True, slots=True)
class Async:
    """Asynchronous parallel (ASP): every gradient is a step of its own, at once.

    Attributes:
        stale: What becomes of stale gradients.
    """

    kind: ClassVar[str] = "async"
    stale: Stale = Apply()


@suggesting
@dataclass(frozen=True, slots=True)
class Sync:
    """Bulk synchronous parallel (BSP): one step for one gradient of each of several trainers. All of them wait for it.

    Attributes:
        trainers: How many trainers a round waits for; None for all that use the optimizer. Once that many have come,
            the number follows those that are left when trainers leave or are lost.
        reduce: Whether the step takes the mean or the sum of the gradients.
    """

    kind: ClassVar[str] = "sync"
    trainers: int | None = None
    reduce: Reduce = "mean"

    def __post_init__(self) -> None:
        if self.trainers is not None:
            check_whole("trainers", self.trainers, 1, _MOST)
        _check_choice("reduce", self.reduce, ("mean", "sum"))


@suggesting
@dataclass(frozen=True, slots=True)
class BoundedStaleness:
    """Every gradient is a step of its own, but no trainer gets more than `bound` steps ahead of the slowest.

    Stale synchronous parallel (SSP): Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
    Parameter Server", NIPS 2013. The step of a trainer that is too far ahead is applied, and answered once the slowest
    has come close enough.

    Attributes:
        bound: The most steps that a trainer may be ahead.
        stale: What becomes of stale gradients.
    """

    kind: ClassVar[str] = "bounded_staleness"
    bound: int
    stale: Stale = Apply()

    def __post_init__(self) -> None:
        check_whole("bound", self.bound, 0, _MOST)


@suggesting
@dataclass(frozen=True, slots=True)
class Quorum:
    """One step as soon as `count` gradients have come.

    With `of`, each trainer gives one gradient for a round and waits for it, and the slowest `of - count` are not waited
    for (backup workers: J. Chen et al., "Revisiting Distributed Synchronous SGD", 2016). Without `of`, the gradients
    may come from any trainers, several from one, and no trainer waits for others (AsySG: X. Lian et al., "Asynchronous
    Parallel Stochastic Gradient for Nonconvex Optimization", NIPS 2015). A gradient that completes no round is answered
    at once, with the parameters before its step and `counted=0`; the one that completes it is answered after the step.

    Attributes:
        count: How many gradients a step takes.
        of: How many trainers there are; None if any may give any number of gradients.
        late: What becomes of a gradient that was computed before the last step: it is dropped, or counts in the next
            round. Without `of`, all count.
        reduce: Whether the step takes the mean or the sum of the gradients.
        stale: What becomes of stale gradients that count.
    """

    kind: ClassVar[str] = "quorum"
    count: int
    of: int | None = None
    late: Late = "drop"
    reduce: Reduce = "mean"
    stale: Stale = Apply()

    def __post_init__(self) -> None:
        check_whole("count", self.count, 1, _MOST)
        if self.of is not None:
            check_whole("of", self.of, self.count, _MOST)
        _check_choice("late", self.late, ("drop", "next"))
        _check_choice("reduce", self.reduce, ("mean", "sum"))


Policy = Async | Sync | BoundedStaleness | Quorum

_POLICIES: Final[dict[str, type[Policy]]] = {each.kind: each for each in (Async, Sync, BoundedStaleness, Quorum)}
_STALE: Final[dict[str, type[Stale]]] = {each.kind: each for each in (Apply, Scale, Reject, Compensate)}


def check(policy: Any) -> None:
    """Raises `InvalidArgumentError` if this is no policy."""
    if not isinstance(policy, Policy):
        known = ", ".join(f"{each.__name__}(…)" for each in _POLICIES.values())
        raise InvalidArgumentError(f"a policy is one of {known}, not {shown(policy)}")
    if hasattr(policy, "stale") and not isinstance(stale := policy.stale, Stale):
        known = ", ".join(f"{each.__name__}(…)" for each in _STALE.values())
        raise InvalidArgumentError(f"stale= is one of {known}, not {shown(stale)}")


def to_plain(policy: Policy | Stale) -> dict[str, Any]:
    """A policy as a dictionary of plain values."""
    fields = {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)}
    nested = {name: to_plain(value) if isinstance(value, Stale) else value for name, value in fields.items()}
    return {"kind": policy.kind, **nested}


def from_plain(values: Any) -> Policy:
    """The policy of such a dictionary.

    Raises:
        InvalidArgumentError: It describes none.
    """
    made = _made(values, _POLICIES, "policy")
    assert isinstance(made, Policy)
    return made


def _made(values: Any, classes: dict[str, Any], what: str) -> Any:
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
        raise InvalidArgumentError(f"a {what} is a dictionary with its kind, not {shown(values)}")
    cls = classes.get(values["kind"])
    if cls is None:
        known = ", ".join(classes)
        raise InvalidArgumentError(f"there is no {what} {values['kind']!r}; there are {known}. Is the owner older?")
    names = {field.name for field in dataclasses.fields(cls)}
    if unknown := values.keys() - names - {"kind"}:
        raise InvalidArgumentError(f"the {what} {values['kind']!r} has no {', '.join(sorted(map(str, unknown)))}")
    given = {name: values[name] for name in names & values.keys()}
    if "stale" in given:
        given["stale"] = _made(given["stale"], _STALE, "handling of stale gradients")
    try:
        return cls(**given)
    except TypeError as error:
        raise InvalidArgumentError(f"the {what} {values['kind']!r} is not complete: {error}") from None


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidArgumentError(f"{name} is {' or '.join(map(repr, choices))}, not {shown(value)}")
