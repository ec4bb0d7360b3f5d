"""Tests that objects are made from allowed classes, are equal for equal seeds, and are found by name or handle."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from ps_service import hosted
from ps_service.engine import Engine
from ps_service.hosting import creation
from ps_service.hosting.fingerprints import Fingerprint
from ps_wire.errors import (
    ForeignHandleError,
    InvalidArgumentError,
    NameConflictError,
    NotAllowedError,
    StaleHandleError,
    UnknownNameError,
)
from ps_wire.refs import Ref
from tests.hosted_models import Counter
from tests.ps_service.threads import PATIENCE, Worker


def test_an_object_is_made_with_its_arguments(engine: Engine) -> None:
    made, created = creation.create(engine, "torch.nn.Linear", (2, 3), {"bias": False})
    assert created
    assert type(made.value) is nn.Linear
    assert made.value.weight.shape == (3, 2)
    assert made.value.bias is None
    assert (made.ref.owner, made.name, made.class_name) == ("ps0", "", "torch.nn.Linear")


def test_a_plain_object_is_hosted_as_well(engine: Engine) -> None:
    made, _ = creation.create(engine, "tests.hosted_models.Counter", (5,), {}, name="counter")
    assert type(made.value) is Counter
    assert made.value.value == 5
    assert creation.attach(engine, "counter") is made
    assert not made.parameters


def test_a_class_off_the_list_is_not_looked_up(engine: Engine) -> None:
    for name in ("os.system", "tests.hosted_models.RRef", "ps_service.engine.Engine"):
        with pytest.raises(NotAllowedError):
            creation.create(engine, name, (), {})
    assert len(engine.registry) == 0


def test_whatever_a_constructor_raises_comes_out(engine: Engine) -> None:
    with pytest.raises(TypeError):
        creation.create(engine, "torch.nn.Linear", (2,), {}, name="net")
    made, created = creation.create(engine, "torch.nn.Linear", (2, 3), {}, name="net")
    assert created
    assert engine.registry.objects() == [made]


@pytest.mark.parametrize(("cls", "args"), [("LazyLinear", (3,)), ("LazyBatchNorm1d", ())])
def test_a_module_without_shapes_is_refused(engine: Engine, cls: str, args: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"torch.nn.{cls} gets the shapes of its parameters"):
        creation.create(engine, f"torch.nn.{cls}", args, {}, name="net")
    assert len(engine.registry) == 0


def test_a_name_is_made_once(engine: Engine) -> None:
    made, created = creation.create(engine, "torch.nn.Linear", (2, 3), {}, name="net", fingerprint=Fingerprint(b"1"))
    again, created_again = creation.create(
        engine, "torch.nn.Linear", (2, 3), {}, name="net", fingerprint=Fingerprint(b"1")
    )
    assert (created, created_again) == (True, False)
    assert made is again
    with pytest.raises(NameConflictError, match=r"it is a torch\.nn\.Linear, made with"):
        creation.create(engine, "torch.nn.Linear", (2, 4), {}, name="net", fingerprint=Fingerprint(b"2"))


def test_a_seed_makes_the_same_numbers_and_leaves_the_generator_alone(engine: Engine) -> None:
    torch.manual_seed(5)
    expected_next = torch.rand(3)
    torch.manual_seed(5)
    one, _ = creation.create(engine, "torch.nn.Linear", (4, 4), {}, seed=3)
    assert torch.equal(torch.rand(3), expected_next)
    other, _ = creation.create(engine, "torch.nn.Linear", (4, 4), {}, seed=3)
    torch.manual_seed(3)
    local = nn.Linear(4, 4)
    for made in (one, other):
        assert torch.equal(made.value.weight, local.weight)
        assert torch.equal(made.value.bias, local.bias)


def test_seed_0_is_a_seed_too(engine: Engine) -> None:
    one, other = (creation.create(engine, "torch.nn.Linear", (4, 4), {}, seed=0)[0] for _ in range(2))
    assert torch.equal(one.value.weight, other.value.weight)


def test_without_a_seed_no_two_are_the_same(engine: Engine) -> None:
    one, other = (creation.create(engine, "torch.nn.Linear", (4, 4), {})[0] for _ in range(2))
    assert not torch.equal(one.value.weight, other.value.weight)


def test_the_generator_is_as_it_was_when_a_constructor_raises(engine: Engine) -> None:
    torch.manual_seed(5)
    expected_next = torch.rand(3)
    torch.manual_seed(5)
    with pytest.raises(TypeError):
        creation.create(engine, "torch.nn.Linear", ("two", 3), {}, seed=3)
    assert torch.equal(torch.rand(3), expected_next)


def test_seeded_constructors_do_not_disturb_each_other(engine: Engine) -> None:
    barrier = threading.Barrier(4)

    def make(seed: int) -> list[torch.Tensor]:
        found = []
        for _ in range(10):
            barrier.wait(PATIENCE)
            found.append(creation.create(engine, "torch.nn.Linear", (30, 30), {}, seed=seed)[0].value.weight.data)
        return found

    results = [worker.result() for worker in [Worker(lambda s=seed: make(s)) for seed in range(4)]]
    for seed, found in enumerate(results):
        torch.manual_seed(seed)
        expected = nn.Linear(30, 30).weight.data
        assert all(torch.equal(weight, expected) for weight in found)


def test_attach_finds_by_name_and_by_handle(engine: Engine) -> None:
    made, _ = creation.create(engine, "torch.nn.Linear", (2, 3), {}, name="net")
    assert creation.attach(engine, "net") is made
    assert creation.attach(engine, made.ref) is made


def test_attach_explains_its_errors(engine: Engine) -> None:
    made, _ = creation.create(engine, "torch.nn.Linear", (2, 3), {})
    with pytest.raises(UnknownNameError):
        creation.attach(engine, "net")
    with pytest.raises(UnknownNameError):
        creation.attach(engine, "")
    with pytest.raises(StaleHandleError):
        creation.attach(engine, Ref("ps0", "0" * 32))
    with pytest.raises(ForeignHandleError):
        creation.attach(engine, made.ref._replace(owner="ps1"))


def test_the_references_of_an_ended_session_are_freed(engine: Engine) -> None:
    session = engine.sessions.open(b"t" * 16)
    anonymous, _ = creation.create(engine, "torch.nn.Linear", (2, 3), {})
    named, _ = creation.create(engine, "torch.nn.Linear", (2, 3), {}, name="net")
    for made in (anonymous, named):
        engine.registry.grant(session.trainer, made)
    engine.end_session(session)
    assert engine.registry.objects() == [named]
    assert len(engine.sessions) == 0


def test_a_fingerprint_tells_where_one_part_ends() -> None:
    different = [(b"ab", b"c"), (b"a", b"bc"), (b"abc",), (b"abc", b""), (b"", b"abc"), ()]
    assert len({Fingerprint.of(parts, {}).digest for parts in different}) == len(different)
    assert Fingerprint.of((b"ab", b"c"), {}) == Fingerprint.of((b"ab", b"c"), {})


def test_the_mark_is_for_the_class_that_wears_it() -> None:
    @hosted
    class Base:
        pass

    class Heir(Base):
        pass

    assert Base.__ps_hosted__ is Base
    assert Heir.__ps_hosted__ is not Heir
