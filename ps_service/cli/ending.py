"""How a command ends that cannot do what it was asked for: with one line that says why."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pydantic
import typer

from ps_wire.errors import PsError, UnavailableError


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Ends the program if a file or the configuration cannot be read, or is not valid."""
    try:
        yield
    except pydantic.ValidationError as error:
        lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        fail("\n  ".join((f"{what} is not valid:", *lines)))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        fail(f"{what} cannot be read: {error}")
    except PsError as error:
        fail(str(error))


@contextmanager
def asking() -> Iterator[None]:
    """Ends the program if an owner does not answer, or answers with an error."""
    try:
        yield
    except PsError as error:
        fail(str(error), 2 if isinstance(error, UnavailableError) else 1)


def fail(message: str, code: int = 2) -> NoReturn:
    """Ends the program with a message and an exit code."""
    typer.secho(f"ps-service: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(code)
