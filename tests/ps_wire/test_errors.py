"""Tests that every code has one class and every class one code, and that the drawn tree is right."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainer_client
from ps_wire import errors
from ps_wire.errors import (
    ClosedError,
    ContextLostError,
    InternalError,
    OverloadedError,
    PsError,
    QuotaError,
    RemoteError,
    from_message,
    to_message,
)
from ps_wire.v1 import errors_pb2
from ps_wire.v1.errors_pb2 import ErrorCode

CODES = [code for code in ErrorCode.values() if code != ErrorCode.ERROR_UNSPECIFIED]
BELOW = {OverloadedError: [QuotaError]}
"""The classes that others are below."""
OURS = [below for cls in PsError.__subclasses__() for below in (cls, *BELOW.get(cls, ()))]
CLASSES = [cls for cls in OURS if cls is not ClosedError]
DRAWN = re.findall(r"^(?:│   )?[├└]── (\w+)(.*)$", errors.__doc__ or "", re.MULTILINE)


def test_every_code_has_exactly_one_class() -> None:
    assert sorted(errors.BY_CODE) == sorted(CODES)
    assert sorted(cls.code for cls in CLASSES) == sorted(CODES)


def test_every_class_has_a_code_of_its_own_and_is_found_by_it() -> None:
    assert all("code" in vars(cls) for cls in CLASSES)
    assert {errors.BY_CODE[cls.code] for cls in CLASSES} == set(CLASSES)


def test_a_class_is_named_like_its_code() -> None:
    for cls in CLASSES:
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Error").removesuffix("Call")).upper()
        assert ErrorCode.Name(cls.code) == f"ERROR_{words}"


def test_the_tree_drawn_in_the_docstring_names_every_class_and_no_other() -> None:
    assert (errors.__doc__ or "").splitlines()[2].split()[0] == "PsError"
    assert sorted(name for name, _ in DRAWN) == sorted(cls.__name__ for cls in OURS)
    # What hosted code raised is raised here as its own kind as well; those kinds are made when they are needed.
    fixed = [child for child in OURS if child is not RemoteError]
    assert [cls for child in fixed for cls in child.__subclasses__()] == [QuotaError]


def test_common_exceptions_of_hosted_code_keep_their_type() -> None:
    for kind in (ValueError, KeyError, RuntimeError, ZeroDivisionError):
        told = errors.to_message(RemoteError("on purpose", f"builtins.{kind.__name__}", "a traceback"))
        raised = errors.from_message(told)
        assert isinstance(raised, kind) and isinstance(raised, RemoteError)
        assert raised.remote_message == "on purpose" and str(raised).startswith(f"builtins.{kind.__name__}: on purpose")
        assert errors.to_message(raised) == told
    for other in ("builtins.SystemExit", "builtins.StopIteration", "builtins.OSError", "my.ValueError"):
        assert type(errors.from_message(errors.to_message(RemoteError("x", other)))) is RemoteError


def test_the_tree_names_the_other_bases_of_a_class() -> None:
    for name, words in DRAWN:
        said = re.search(r"\(also an? (\w+)\)", words)
        cls = getattr(errors, name)
        others = [base.__name__ for base in cls.__bases__ if base is not PsError and base not in BELOW]
        assert others == ([said[1]] if said else []), name


def test_trainers_find_every_error_at_the_front_door() -> None:
    for cls in [PsError, *OURS]:
        assert getattr(trainer_client.errors, cls.__name__) is cls
        assert cls.__name__ in trainer_client.errors.__all__


@given(message=st.text(st.characters(codec="utf-8")))
def test_an_error_survives_the_wire(message: str) -> None:
    for cls in CLASSES:
        if cls is not RemoteError:
            wire = errors_pb2.Error.FromString(to_message(cls(message)).SerializeToString())
            error = from_message(wire)
            assert type(error) is cls
            assert (str(error), error.drained) == (message, cls.drained)


def test_an_error_keeps_that_an_owner_was_stopped_in_order() -> None:
    error = ContextLostError("lost")
    error.drained = True
    assert errors.caused(from_message(to_message(error)), "a later call").drained


@given(*[st.text(st.characters(codec="utf-8"))] * 3)
def test_a_remote_error_survives_the_wire_with_type_and_traceback(message: str, kind: str, traceback: str) -> None:
    wire = errors_pb2.Error.FromString(to_message(RemoteError(message, kind, traceback)).SerializeToString())
    error = from_message(wire)
    assert isinstance(error, RemoteError)
    assert (error.remote_message, error.remote_type, error.remote_traceback) == (message, kind, traceback)


def test_a_remote_error_shows_the_owner_s_traceback_to_people() -> None:
    assert str(RemoteError("no", "builtins.ValueError", "line 1\nline 2")) == (
        "builtins.ValueError: no\n\nOriginal exception on remote side was:\nline 1\nline 2"
    )
    assert str(RemoteError("no", "builtins.ValueError")) == "builtins.ValueError: no"


@pytest.mark.parametrize("code", [ErrorCode.ERROR_UNSPECIFIED, max(CODES) + 1, 12345])
def test_a_code_that_is_not_known_here_becomes_an_internal_error(code: int) -> None:
    error = from_message(errors_pb2.Error(code=code, message="from a newer owner"))
    assert type(error) is InternalError
    assert str(error) == "from a newer owner"


def test_an_error_without_a_class_of_its_own_crosses_as_an_internal_one() -> None:
    for local in (PsError("x"), ClosedError("x")):
        assert type(from_message(to_message(local))) is InternalError


def test_text_that_utf8_has_no_form_for_is_escaped_and_not_lost() -> None:
    error = from_message(to_message(RemoteError("half a \ud83d", "some.\udc80Type", "line \ud800")))
    assert isinstance(error, RemoteError)
    assert (error.remote_message, error.remote_type) == (r"half a \ud83d", r"some.\udc80Type")
    assert error.remote_traceback == r"line \ud800"
    assert str(from_message(to_message(InternalError("\udfff")))) == r"\udfff"


def test_errors_can_be_caught_as_the_builtin_that_they_resemble() -> None:
    with pytest.raises(ValueError, match="x"):
        raise errors.InvalidArgumentError("x")
    with pytest.raises(TimeoutError, match="x"):
        raise errors.DeadlineExceededError("x")
    with pytest.raises(ConnectionError, match="x"):
        raise errors.SessionLostError("x")
    with pytest.raises(AttributeError, match="x"):
        raise errors.UnknownMethodError("x")


def test_every_error_is_a_runtime_error() -> None:
    for cls in PsError.__subclasses__():
        error = cls("x")
        assert isinstance(error, RuntimeError) and error.args == ("x",), cls


def test_a_registered_exception_keeps_its_type_whatever_it_is_made_of() -> None:
    for kind in (Picky, OfRuntime):
        raised = told(kind)
        assert isinstance(raised, kind) and isinstance(raised, RemoteError) and isinstance(raised, RuntimeError)
        assert (raised.remote_message, raised.args) == ("text", ("text",))
        assert isinstance(errors.caused(raised, "a step failed"), kind)
    for kind in (Closed, Strict):
        assert type(told(kind)) is RemoteError
    assert type(errors.remote_error("x", f"{__name__}.Unregistered")) is RemoteError


def told(kind: type[Exception]) -> RemoteError:
    name = f"{__name__}.{kind.__name__}"
    errors.keep_type(kind, name)
    raised = from_message(to_message(RemoteError("text", name)))
    assert isinstance(raised, RemoteError)
    return raised


class Picky(ValueError):
    def __init__(self, code: int, text: str, *, extra: int) -> None:
        super().__init__(text)


class OfRuntime(RuntimeError):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)


class Strict(RuntimeError):
    def __new__(cls, code: int) -> Strict:
        return super().__new__(cls, code)


class Closed(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("it has no subclasses")
