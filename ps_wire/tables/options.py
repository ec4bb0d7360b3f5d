"""Options of a table: how new rows begin, and which optimizer updates rows. Values that both sides know."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ps_wire.close_names import hint, suggesting
from ps_wire.errors import InvalidArgumentError
from ps_wire.numbers import check_finite, check_whole
from ps_wire.shown import shown
from ps_wire.tables.lifecycle import Admission, AfterSightings, Eviction, WithProbability


@suggesting
@dataclass(frozen=True, slots=True)
class Normal:
    """New rows are drawn from a normal distribution with mean 0.

    The values are the quantiles of the distribution in the middle of 65,536 equal shares, so none is larger than 4.33
    times `std`.

    Attributes:
        std: Standard deviation.
    """

    kind: ClassVar[str] = "normal"
    std: float = 0.01

    def __post_init__(self) -> None:
        check_finite("std", self.std, 0.0)


@suggesting
@dataclass(frozen=True, slots=True)
class Uniform:
    """New rows are drawn evenly from an interval.

    Attributes:
        low: Smallest value.
        high: End of the interval, which is not drawn unless rounding gives it.
    """

    kind: ClassVar[str] = "uniform"
    low: float = -0.05
    high: float = 0.05

    def __post_init__(self) -> None:
        check_finite("low", self.low)
        check_finite("high", self.high, self.low)


@suggesting
@dataclass(frozen=True, slots=True)
class Zeros:
    """New rows are zero."""

    kind: ClassVar[str] = "zeros"


@suggesting
@dataclass(frozen=True, slots=True)
class Constant:
    """All values of new rows are the same.

    Attributes:
        value: The value.
    """

    kind: ClassVar[str] = "constant"
    value: float

    def __post_init__(self) -> None:
        check_finite("value", self.value)


Initialisation = Normal | Uniform | Zeros | Constant


@suggesting
@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent on the rows that have a gradient, as `torch.optim.SGD` does for one row.

    Attributes:
        lr: Learning rate.
        momentum: Momentum. That of a row decays only when the row is updated.
        weight_decay: Decoupled weight decay: a row that is updated is first multiplied by `1 - lr * weight_decay`.
    """

    kind: ClassVar[str] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_common(self)
        check_finite("momentum", self.momentum, 0.0, below=1.0)


@suggesting
@dataclass(frozen=True, slots=True)
class Adagrad:
    """Adagrad: J. Duchi, E. Hazan, Y. Singer, JMLR 12, 2011. One sum of squares for each value.

    Attributes:
        lr: Learning rate.
        eps: Added to the root of the sum. Not 0, unless the sum begins above 0.
        initial_accumulator: The sum a row begins with.
        weight_decay: Decoupled weight decay.
    """

    kind: ClassVar[str] = "adagrad"
    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_common(self)
        _check_accumulator(self)


@suggesting
@dataclass(frozen=True, slots=True)
class RowWiseAdagrad:
    """Adagrad with one number for each row: the sum of the mean squares of its gradients, as in FBGEMM and TorchRec.

    Attributes:
        lr: Learning rate.
        eps: Added to the root of the sum. Not 0, unless the sum begins above 0.
        initial_accumulator: The sum a row begins with.
        weight_decay: Decoupled weight decay.
    """

    kind: ClassVar[str] = "row_wise_adagrad"
    lr: float = 0.01
    eps: float = 1e-8
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_common(self)
        _check_accumulator(self)


@suggesting
@dataclass(frozen=True, slots=True)
class LazyAdam:
    """Adam on the rows that have a gradient, as `torch.optim.AdamW` does for one row.

    Moments and the number of steps belong to a row and change only when it is updated, so the result does not depend on
    how a table is split over owners.

    Attributes:
        lr: Learning rate.
        betas: Decay of the first and of the second moment.
        eps: Added to the root of the second moment; not 0.
        weight_decay: Decoupled weight decay.
    """

    kind: ClassVar[str] = "lazy_adam"
    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_common(self)
        _check_betas(self)


@suggesting
@dataclass(frozen=True, slots=True)
class PartialRowWiseAdam:
    """Adam whose second moment is one number for each row: that of the mean squares of its gradients, as in FBGEMM.

    Attributes:
        lr: Learning rate.
        betas: Decay of the first and of the second moment.
        eps: Added to the root of the second moment; not 0.
        weight_decay: Decoupled weight decay.
    """

    kind: ClassVar[str] = "partial_row_wise_adam"
    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_common(self)
        _check_betas(self)


@suggesting
@dataclass(frozen=True, slots=True)
class FTRL:
    """FTRL-Proximal with a learning rate per coordinate.

    H. B. McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013. Rows usually begin
    with `Zeros()`.

    Attributes:
        lr: The paper's alpha.
        beta: The paper's beta: damps the learning rate of values with few gradients.
        l1: Values whose linear term is not larger than this are exactly zero.
        l2: Strength of the quadratic penalty.
    """

    kind: ClassVar[str] = "ftrl"
    lr: float = 0.05
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        for name in ("beta", "l1", "l2"):
            check_finite(name, getattr(self, name), 0.0)
        check_finite("lr", self.lr, 0.0)
        if not self.lr:
            raise InvalidArgumentError("the learning rate of FTRL is divided by, so it is not 0")


RowOptimizer = SGD | Adagrad | RowWiseAdagrad | LazyAdam | PartialRowWiseAdam | FTRL


@suggesting
@dataclass(frozen=True, slots=True)
class RowGroup:
    """Options of the optimizer for the rows of a range of ids, in place of those of the table.

    A schedule, or whatever else changes the learning rate of the table, scales that of the group by the same factor.

    Attributes:
        low: Smallest id of the group.
        high: Largest id of the group.
        lr: Learning rate while the table has the one that it was made with; None for that of the table.
        weight_decay: Decoupled weight decay; None for that of the table. `FTRL` has none.
    """

    kind: ClassVar[str] = "row_group"
    low: int
    high: int
    lr: float | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        check_whole("low", self.low, -(1 << 63), (1 << 63) - 1)
        check_whole("high", self.high, -(1 << 63), (1 << 63) - 1)
        if self.high < self.low:
            raise InvalidArgumentError(f"a group of rows ends before it begins: low={self.low}, high={self.high}")
        for name in ("lr", "weight_decay"):
            if getattr(self, name) is not None:
                check_finite(name, getattr(self, name), 0.0)


def check_groups(optimizer: RowOptimizer, groups: Iterable[RowGroup]) -> None:
    """Checks the options of groups of rows as those of the optimizer itself. Raises `InvalidArgumentError` if the
    optimizer has no such option, or does not take its value."""
    known = {field.name for field in dataclasses.fields(optimizer)}
    for group in groups:
        own = {name: value for name in ("lr", "weight_decay") if (value := getattr(group, name)) is not None}
        if unknown := [name for name in own if name not in known]:
            raise InvalidArgumentError(
                f"{group} has {unknown[0]}=, "
                f"which {type(optimizer).__name__} has not; it has {', '.join(sorted(known))}"
            )
        try:
            dataclasses.replace(optimizer, **own)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{group} does not fit {type(optimizer).__name__}: {error}") from None


_KINDS: Final[dict[str, Any]] = {
    each.kind: each
    for each in (
        *(Normal, Uniform, Zeros, Constant),
        *(SGD, Adagrad, RowWiseAdagrad, LazyAdam, PartialRowWiseAdam, FTRL),
        RowGroup,
        *(AfterSightings, WithProbability, Eviction),
    )
}


def to_plain(option: Initialisation | RowOptimizer | RowGroup | Admission | Eviction) -> dict[str, Any]:
    """An option as a dictionary of plain values."""
    fields = {each.name: _plain(each.type, getattr(option, each.name)) for each in dataclasses.fields(option)}
    return {"kind": option.kind, **fields}


def _plain(kind: Any, value: Any) -> Any:
    """A value of a field: 1 where 1.0 is meant is that, so that programs that write either ask for the same."""
    if isinstance(value, tuple):
        return [float(each) for each in value]
    return float(value) if "float" in str(kind) and isinstance(value, int) else value


def from_plain(values: Any) -> Any:
    """The option of such a dictionary. Raises `InvalidArgumentError` if it describes none."""
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
        raise InvalidArgumentError(f"an option of a table is a dictionary with its kind, not {shown(values)}")
    cls = _KINDS.get(values["kind"])
    if cls is None:
        close = hint(values["kind"], _KINDS)
        raise InvalidArgumentError(f"there is no option {values['kind']!r}; there are {', '.join(_KINDS)}{close}")
    names = {field.name for field in dataclasses.fields(cls)}
    if unknown := sorted(map(str, values.keys() - names - {"kind"})):
        has = f"{', '.join(sorted(names)) or 'no options'}{hint(unknown[0], names)}"
        raise InvalidArgumentError(f"{values['kind']!r} has no {', '.join(unknown)}; it has {has}")
    given = {name: tuple(v) if isinstance(v := values[name], list) else v for name in names & values.keys()}
    try:
        return cls(**given)
    except TypeError as error:
        raise InvalidArgumentError(f"{values['kind']!r} is not complete: {error}") from None


def _check_common(option: Any) -> None:
    check_finite("lr", option.lr, 0.0)
    check_finite("weight_decay", option.weight_decay, 0.0)


def _check_accumulator(option: Any) -> None:
    check_finite("eps", option.eps, 0.0)
    check_finite("initial_accumulator", option.initial_accumulator, 0.0)
    if not option.eps and not option.initial_accumulator:
        raise InvalidArgumentError("with eps=0 and initial_accumulator=0, a gradient of 0 would make a row NaN")


def _check_betas(option: Any) -> None:
    betas = option.betas
    if not isinstance(betas, tuple) or len(betas) != 2:
        raise InvalidArgumentError(f"betas is a tuple of two numbers, not {shown(betas)}")
    for beta in betas:
        check_finite("each of betas", beta, 0.0, below=1.0)
    check_finite("eps", option.eps, 0.0)
    if not option.eps:
        raise InvalidArgumentError("with eps=0, a gradient of 0 would make a row NaN")
