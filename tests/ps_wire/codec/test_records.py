"""Tests that instances of registered classes travel by value, and those of other classes do not."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pytest
import torch

from ps_wire.codec import records
from ps_wire.codec.payload import PayloadReader, PayloadWriter, joined
from ps_wire.codec.records import by_value
from ps_wire.codec.trees import leaves_in, mapped, tensors_in
from ps_wire.codec.values import Decoder, Encoder
from ps_wire.errors import InvalidArgumentError, remote_error
from ps_wire.v1.values_pb2 import Record, Value


@by_value
@dataclass
class Batch:
    x: torch.Tensor
    labels: list[int]
    length: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.x):
            raise ValueError("as many labels as rows")
        self.length = len(self.x)


@by_value
class Step(NamedTuple):
    state: torch.Tensor
    reward: float
    batch: Any = None


class Special(Batch):
    """A subclass has no codec of its own."""


@by_value
class Mode(enum.Enum):
    INSIDE = enum.auto()
    OUTSIDE = enum.auto()


@by_value
class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


@by_value
class Level(enum.IntEnum):
    LOW = 5
    HIGH = 6


@by_value
class Switches(enum.IntFlag):
    FAN = enum.auto()
    LAMP = enum.auto()


@by_value
class Name(enum.StrEnum):
    FIRST = "first"


@by_value
@dataclass(frozen=True)
class Scaled:
    """A record whose `__post_init__` would compute once more what it has computed before."""

    factor: float
    names: Any = ()
    calls: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", self.factor * 2)
        object.__setattr__(self, "names", frozenset(self.names))


class Counts(dict[str, int]):
    """A dict with a codec of its own."""


class OutOfStock(LookupError):
    """An exception."""


by_value(encode=str, decode=PurePosixPath, name="path")(PurePosixPath)


def through(value: Any) -> Any:
    payload = PayloadWriter()
    message = Encoder(payload).encode(value)
    return Decoder(PayloadReader(joined(payload.chunks, payload.nbytes))).decode(
        Value.FromString(message.SerializeToString())
    )


def test_dataclasses_and_named_tuples_keep_their_class() -> None:
    batch = Batch(torch.tensor([1.0, 2.0]), [3, 4])
    step = through({"step": Step(torch.ones(2), 0.5, batch), "plain": (1, 2)})["step"]
    assert type(step) is Step and type(step.batch) is Batch
    assert torch.equal(step.state, torch.ones(2)) and step.reward == 0.5
    assert torch.equal(step.batch.x, batch.x) and step.batch.labels == [3, 4] and step.batch.length == 2


def test_members_of_enumerations_are_the_same_members() -> None:
    assert through([Mode.OUTSIDE, Rights.READ | Rights.WRITE]) == [Mode.OUTSIDE, Rights.READ | Rights.WRITE]
    assert through(Mode.INSIDE) is Mode.INSIDE
    message = Encoder(None).encode(Mode.INSIDE)
    message.record.state.text = "ELSEWHERE"
    with pytest.raises(InvalidArgumentError, match=r"no .*Mode could be made of what arrived"):
        Decoder(PayloadReader()).decode(message)


def test_members_of_enumerations_that_are_numbers_or_texts_stay_members() -> None:
    members = [Level.HIGH, Switches.FAN | Switches.LAMP, Name.FIRST]
    assert [type(each) for each in through(members)] == [Level, Switches, Name] and through(members) == members
    assert through({Level.LOW: 1}).popitem()[0] is Level.LOW
    assert mapped(members, torch.clone) == members and type(mapped(members, torch.clone)[0]) is Level


def test_fields_keep_the_values_that_were_sent() -> None:
    sent = Scaled(3.0)
    object.__setattr__(sent, "calls", 7)
    object.__setattr__(sent, "names", ["a"])
    for found in (through(sent), mapped(sent, torch.clone)):
        assert found.factor == 6.0 and found.calls == 7
    assert through(sent).names == frozenset(["a"])


def test_containers_with_a_codec_of_their_own_keep_their_class() -> None:
    by_value(encode=dict, decode=Counts)(Counts)
    for found in (through(Counts(a=1)), mapped(Counts(a=1), torch.clone)):
        assert type(found) is Counts and found == {"a": 1}
    assert list(leaves_in(Counts(a=1))) == ["a", 1]


def test_any_class_travels_with_a_codec() -> None:
    assert through([PurePosixPath("a/b")]) == [PurePosixPath("a/b")]


def test_trees_are_walked_through_records_in_the_order_of_the_codec() -> None:
    first, second = torch.tensor([1.0]), torch.tensor([2.0])
    tree = [Step(first, 1.0, Batch(second, [5]))]
    assert [id(tensor) for tensor in tensors_in(tree)] == [id(first), id(second)]
    assert [leaf for leaf in leaves_in(tree) if isinstance(leaf, int)] == [5, 1]
    doubled = mapped(tree, lambda tensor: tensor * 2)
    assert type(doubled[0]) is Step and doubled[0].batch.x.item() == 4.0


def test_unregistered_classes_are_refused_on_both_sides() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Special cannot be sent.*decorated with @by_value"):
        Encoder(None).encode(Special(torch.ones(1), [1]))
    unknown = Value(record=Record(class_name="os.system", state=Value(text="true")))
    with pytest.raises(InvalidArgumentError, match=r"os\.system arrived, which is not registered in this process"):
        Decoder(PayloadReader()).decode(unknown)
    with pytest.raises(TypeError, match="neither a dataclass nor a NamedTuple nor an exception"):
        by_value(object)


def test_exceptions_are_made_of_their_args() -> None:
    by_value(OutOfStock)
    sent = through(OutOfStock("bolts", 3))
    assert type(sent) is OutOfStock and sent.args == ("bolts", 3)
    assert isinstance(remote_error("no bolts", f"{__name__}.OutOfStock"), OutOfStock)


@pytest.mark.parametrize(
    "state", [Value(text="x"), Value(integer=3), Encoder(None).encode({"x": torch.ones(2), "labels": []}), Value()]
)
def test_a_state_that_does_not_fit_a_class_is_a_typed_error(state: Value) -> None:
    message = Value(record=Record(class_name=f"{__name__}.Batch", state=state))
    with pytest.raises(InvalidArgumentError):
        Decoder(PayloadReader()).decode(message)
    assert records.codec_named(f"{__name__}.Batch").name == f"{__name__}.Batch"
