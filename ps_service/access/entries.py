"""The entries of a token file: lines of JSON, each with one identity and what shows that a caller is it."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ps_service.access import namespaces, roles
from ps_wire.errors import InvalidArgumentError

PREFIX: Final = "ps_"
"""Begins every token, so that tools that look for secrets in texts find it."""

_NAME: Final = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_FIELDS: Final = ("name", "roles", "hash", "expires", "certificates", "namespaces")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a token file.

    Attributes:
        name: The name of the identity.
        roles: Its roles.
        hash: The SHA-256 of its token, in hexadecimal; empty if it has none.
        expires: Until when it is valid, in Unix time; None for ever.
        certificates: Names in certificates of trainers, each of which shows the identity, too.
        namespaces: Namespaces beside the default one, with its roles in each.
    """

    name: str
    roles: tuple[str, ...]
    hash: str = ""
    expires: float | None = None
    certificates: tuple[str, ...] = ()
    namespaces: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidArgumentError(f"{self.name!r} is no name: 1 to 64 letters, digits, '_', '.', '@' and '-' are")
        if not self.roles and not self.namespaces:
            raise InvalidArgumentError(f"{self.name!r} has no role; the roles are {', '.join(roles.ROLES)}")
        roles.rights_of(self.roles)
        for namespace, own in self.namespaces:
            namespaces.checked(namespace)
            if roles.rights_of(own) & roles.OWNER or not own:
                raise InvalidArgumentError(f"{self.name!r} has no role that a namespace can give in {namespace!r}")
        if self.hash and not _HASH.fullmatch(self.hash):
            raise InvalidArgumentError(f"the hash of {self.name!r} is no SHA-256 in hexadecimal")
        if not self.hash and not self.certificates:
            raise InvalidArgumentError(f"{self.name!r} has neither a token nor a certificate")

    def is_valid(self, now: float) -> bool:
        """Whether it has not expired."""
        return self.expires is None or now < self.expires

    def line(self) -> str:
        """The line that it is in the file."""
        told: dict[str, Any] = {"name": self.name, "roles": list(self.roles)}
        if self.hash:
            told["hash"] = self.hash
        if self.expires is not None:
            told["expires"] = datetime.fromtimestamp(self.expires).astimezone().isoformat(timespec="seconds")
        if self.certificates:
            told["certificates"] = list(self.certificates)
        if self.namespaces:
            told["namespaces"] = {namespace: list(own) for namespace, own in self.namespaces}
        return json.dumps(told)


def parse(line: str) -> Entry:
    """The entry of a line. Raises `InvalidArgumentError`, with a text that does not repeat the line."""
    try:
        told = json.loads(line)
    except ValueError as error:
        raise InvalidArgumentError(f"it is no JSON: {error}") from None
    if not isinstance(told, dict):
        raise InvalidArgumentError("it is no JSON object")
    if unknown := [each for each in told if each not in _FIELDS]:
        raise InvalidArgumentError(f"it has the unknown field {unknown[0]!r}; known are {', '.join(_FIELDS)}")
    name, digest, expires = told.get("name"), told.get("hash", ""), told.get("expires")
    if not isinstance(name, str) or not isinstance(digest, str):
        raise InvalidArgumentError("name and hash are texts")
    spaces = told.get("namespaces", {})
    if not isinstance(spaces, dict):
        raise InvalidArgumentError("namespaces is an object with a list of roles for each namespace")
    own = tuple((each, _texts(spaces, each)) for each in spaces)
    return Entry(name, _texts(told, "roles"), digest, _time_of(expires), _texts(told, "certificates"), own)


def hash_of(token: str) -> str:
    """What the file has of a token. Tokens are long and random, so one round is enough."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def seconds_of(text: str) -> float:
    """How long `30d`, `12h`, `15m` or `90s` are. Raises `InvalidArgumentError`."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if match is None or int(match[1]) == 0:
        raise InvalidArgumentError(f"{text!r} is no time; 30d, 12h, 15m and 90s are")
    return int(match[1]) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[match[2]]


def left(expires: float | None, now: float | None = None) -> str:
    """How long something is valid, for people."""
    if expires is None:
        return "does not expire"
    seconds = expires - (time.time() if now is None else now)
    when = datetime.fromtimestamp(expires).astimezone().isoformat(sep=" ", timespec="minutes")
    return f"expires {when}" if seconds > 0 else f"expired {when}"


def _texts(told: dict[str, Any], field: str) -> tuple[str, ...]:
    found = told.get(field, [])
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        raise InvalidArgumentError(f"{field} is a list of texts")
    return tuple(found)


def _time_of(expires: object) -> float | None:
    if expires is None:
        return None
    try:
        found = datetime.fromisoformat(str(expires))
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidArgumentError("expires is a time with a time zone, such as 2030-01-31T12:00:00+00:00")
    return found.timestamp()
