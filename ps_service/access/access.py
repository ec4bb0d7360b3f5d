"""The decision who may do what on an owner: one for streams, unary methods and HTTP alike."""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ps_service.access import roles
from ps_service.access.entries import Entry, hash_of, left
from ps_service.access.identities import ANYONE, Identity
from ps_service.access.reread import Reread
from ps_wire.errors import PermissionDeniedError, PsError, UnauthenticatedError
from ps_wire.runtime.noop import noop

if TYPE_CHECKING:
    from ps_service.access.token_file import TokenFile

_HOW: Final = (
    "give tc.connect or rpc.init_rpc a token=, set the variable PS_TOKEN or PS_OWN_TOKEN_FILE, send the metadata or "
    "header 'authorization: Bearer …', or show a certificate that the token file names"
)


_OF_ALL_NAMESPACES: Final = frozenset(("checkpoint", "evict", "move", "sessions"))
"""Operations for which a role in one namespace is not enough, but for their plain requests."""


class Plain(NamedTuple):
    """What a plain request of an operation needs, which is less than others: those that `holds` is true for."""

    needs: int
    holds: Callable[[Any], bool]
    words: str


class Asked(Protocol):
    """What a caller asks for: an operation, another method of gRPC, or a path of HTTP."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def needs(self) -> int:
        """The role that it needs, as a bit of `roles`."""

    @property
    def plain(self) -> Plain | None:
        """What its plain requests need, if that is less."""


class Point(NamedTuple):
    """What can be asked for beside the operations."""

    name: str
    needs: int
    plain: Plain | None = None


class Access:
    """Knows the identities of an owner. Without a file of tokens, everybody may do everything.

    `when_refused` is told of each refusal: the name of the identity, empty if there is none, what was asked for, and
    why not. `when_read` is told when the file was read again. Safe from several threads.
    """

    def __init__(self, owner: str, file: TokenFile | None = None, clock: Callable[[], float] = time.time) -> None:
        self.when_refused: Callable[[str, str, PsError], object] = noop
        self.when_read: Callable[[str], object] = noop
        self._owner = owner
        self._file = None if file is None else Reread(file, "tokens")
        self.clock = clock

    @property
    def is_on(self) -> bool:
        """Whether callers have to show who they are."""
        return self._file is not None

    @property
    def _entries(self) -> list[Entry]:
        return [] if self._file is None else self._file.content

    def identify(self, authorization: Iterable[str], certificates: Iterable[str] = (), what: str = "") -> Identity:
        """Who a caller is that has sent these headers `authorization`, and has a certificate with these names. `what`
        it asks for is told if it is refused. Raises `UnauthenticatedError`."""
        if self._file is None:
            return ANYONE
        try:
            return self._identified(list(authorization), frozenset(filter(None, certificates)))
        except UnauthenticatedError as error:
            self.when_refused("", what, error)
            raise

    def check(self, identity: Identity, asked: Asked, request: object = None) -> None:
        """Raises `PermissionDeniedError` if an identity may not do what it asks for. This is the one decision. Without
        a `request`, which has not been read yet, it passes if some request of that kind may pass."""
        plain, needs = asked.plain, roles.NAMES.get(asked.needs, "")
        if asked.needs == roles.NOBODY or identity.rights & asked.needs:
            is_plain = plain is not None and (request is None or plain.holds(request))
            if asked.name in _OF_ALL_NAMESPACES and identity.name and not identity.is_everywhere and not is_plain:
                why = f"{asked.name} concerns all namespaces, and {identity} has the role {needs} in one alone"
                raise self.refused(identity, asked.name, f"{why}. Ask for a token with it in 'default'")
            return
        if plain is not None:
            if identity.rights & plain.needs and (request is None or plain.holds(request)):
                return
            needs += f" (or {roles.NAMES[plain.needs]}, for {plain.words})"
        add = f"ps-service token add {identity.name} --role {roles.NAMES[asked.needs]}"
        has = roles.named(identity.rights)
        why = (
            f"{asked.name} needs the role {needs}, and you are {identity} with {has}. Ask for a token with it (`{add}`)"
        )
        raise self.refused(identity, asked.name, why)

    def refused(self, identity: Identity, what: str, why: str) -> PermissionDeniedError:
        """The error for what an identity may not do, which is told, too."""
        error = PermissionDeniedError(f"owner {self._owner!r} refuses this: {why}")
        self.when_refused(identity.name, what, error)
        return error

    def current(self, identity: Identity) -> Identity | None:
        """An identity as the file has it now; None if what has shown it was revoked, or has expired."""
        if not identity.key:
            return identity
        now = self.clock()
        for each in self._entries:
            if each.name == identity.name and each.is_valid(now):
                if each.hash == identity.key:
                    return _of_token(each)
                if identity.key in each.certificates:
                    return _of_certificate(each, identity.key)
        return None

    def identities(self, name: str) -> list[tuple[Entry, Identity]]:
        """The entries of a name, with the identity that each shows; also those that have expired."""
        named = [each for each in self._entries if each.name == name]
        found = [(each, _of_token(each)) for each in named if each.hash]
        return found + [(each, _of_certificate(each, by)) for each in named for by in each.certificates]

    def look(self) -> None:
        """Reads the file again if it has changed. While it cannot be read, or is not valid, what it had before stays,
        and the log says so once."""
        if self._file is not None and self._file.look():
            self.when_read(f"the token file was read again: it has {len(self._entries)} entries")

    def _identified(self, authorization: list[str], certificates: frozenset[str]) -> Identity:
        if len(authorization) > 1:
            raise UnauthenticatedError(f"owner {self._owner!r} takes one authorization, and not {len(authorization)}")
        if authorization:
            return self._of_token(_token_in(authorization[0]))
        now = self.clock()
        for each in self._entries:
            for name in each.certificates:
                if name in certificates and each.is_valid(now):
                    return _of_certificate(each, name)
        whose = f"; it does not know the certificate of {sorted(certificates)[0]!r}" if certificates else ""
        raise UnauthenticatedError(f"owner {self._owner!r} has to know who you are{whose}: {_HOW}")

    def _of_token(self, token: str) -> Identity:
        digest, found = hash_of(token), None
        for each in self._entries:  # all of them, so that the time says nothing
            if hmac.compare_digest(each.hash, digest):
                found = each
        if found is None:
            raise UnauthenticatedError(
                f"owner {self._owner!r} does not know this token; was it revoked, or made for other owners?"
            )
        if not found.is_valid(self.clock()):
            raise UnauthenticatedError(
                f"the token of {found.name!r} {left(found.expires, self.clock())}; make a new one with `ps-service "
                f"token add {found.name}`"
            )
        return _of_token(found)


def _of_token(entry: Entry) -> Identity:
    return _identity(entry, "by its token", entry.hash)


def _of_certificate(entry: Entry, name: str) -> Identity:
    return _identity(entry, f"by the certificate of {name}", name)


def _identity(entry: Entry, source: str, key: str) -> Identity:
    rights = roles.rights_of(entry.roles)
    others = {namespace: roles.rights_of(own) for namespace, own in entry.namespaces}
    return Identity(entry.name, rights, source, key, others, bool(rights & roles.ADMIN))


def _token_in(authorization: str) -> str:
    """The token in a header: `Bearer TOKEN`, or `Basic` with the token as password, which browsers ask for."""
    scheme, _, rest = authorization.strip().partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and rest:
        return rest
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            pass  # it is no header of that kind; the error below says so
    raise UnauthenticatedError("the header authorization is neither 'Bearer TOKEN' nor a Basic one with a token")
