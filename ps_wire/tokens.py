"""The token with which a trainer or an owner shows who it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ps_wire.errors import InvalidArgumentError

Token = str | Path | None
"""A token, or a file that has it, which is read at each connection; None for none."""

Metadata = tuple[tuple[str, str], ...]

_LONGEST: Final = 4096
"""Most characters of a token."""


def of_variables() -> Token:
    """The token in the variable `PS_TOKEN`, or the file that `PS_OWN_TOKEN_FILE` names; None if neither is set."""
    token, path = os.environ.get("PS_TOKEN"), os.environ.get("PS_OWN_TOKEN_FILE")
    return token or (Path(path) if path else None)


def metadata_of_variables() -> Metadata:
    """What is sent with each call of a program that the variables tell who it is, and its namespace."""
    return metadata_of(of_variables(), os.environ.get("PS_NAMESPACE", ""))


def metadata_of(token: Token, namespace: str = "") -> Metadata:
    """What is sent with each call of gRPC. Raises `InvalidArgumentError` if the file cannot be read, or has no token.
    Messages never have the token."""
    within = (("ps-namespace", namespace),) if namespace else ()
    if token is None:
        return within
    if isinstance(token, Path):
        try:
            text = token.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InvalidArgumentError(f"the token file {token} cannot be read: {why}") from None
        where = f"the file {token}"
    elif not isinstance(token, str):
        raise InvalidArgumentError(f"token= is a text, or the Path of a file, not a {type(token).__name__}")
    else:
        text, where = token.strip(), "token="
    if not text or len(text) > _LONGEST or not (text.isascii() and text.isprintable()) or " " in text:
        raise InvalidArgumentError(
            f"{where} has no token: one line of ASCII without spaces is, as `ps-service token add` prints it"
        )
    return (("authorization", f"Bearer {text}"), *within)
