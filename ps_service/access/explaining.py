"""Says what roles and identities may do, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ps_service.access import namespaces, roles
from ps_service.access.entries import left
from ps_wire.errors import PermissionDeniedError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ps_service.access.access import Access, Asked
    from ps_service.access.entries import Entry
    from ps_service.access.identities import Identity


_WITH_OBJECTS: Final = {
    roles.READER: "call",
    roles.TRAINER: "train",
    roles.BULK: "copy the state of",
    roles.ADMIN: "delete",
}
"""What the bits of roles allow with an object."""


class Answer(NamedTuple):
    """Whether an identity may do something, and a text that says why."""

    may: bool
    text: str


def mark(asked: Asked, rights: int) -> str:
    """What callers with these rights may do of what can be asked for: `yes`, `(yes)` for plain requests, or nothing."""
    if asked.needs == roles.NOBODY or rights & asked.needs:
        return "yes"
    return "(yes)" if asked.plain is not None and rights & asked.plain.needs else ""


def matrix(all_asked: Iterable[Asked]) -> list[dict[str, Any]]:
    """What each role may do, as what JSON has."""
    return [
        {
            "operation": each.name,
            "roles": {role: mark(each, bits) or "no" for role, bits in roles.ROLES.items()},
            "plain": "" if each.plain is None else each.plain.words,
        }
        for each in all_asked
    ]


def explain_object(access: Access, name: str, what: str, namespace: str) -> Answer:
    """What an identity may do with an object of a namespace. Raises as `explain`."""
    lines, may = [], False
    for entry, shown in _found(access, name):
        identity = shown.within(namespace)
        rights = roles.KNOWN if access.current(shown) is None else identity.rights
        allowed = [words for bit, words in _WITH_OBJECTS.items() if rights & bit]
        may = may or bool(allowed)
        lines.append(
            f"{name} may {', '.join(allowed) or 'do nothing with'} {what!r} of the namespace "
            f"{namespace or namespaces.DEFAULT!r}, {shown.source}, which {left(entry.expires)}"
        )
    return Answer(may, "\n".join(lines))


def _found(access: Access, name: str) -> list[tuple[Entry, Identity]]:
    found = access.identities(name)
    if not found:
        raise UnknownNameError(f"the token file has no identity {name!r}; `ps-service token list` lists them")
    return found


def explain(access: Access, name: str, asked: Asked, namespace: str = "") -> Answer:
    """What the tokens and certificates of an identity allow in a namespace. Raises `UnknownNameError` if it is not
    there."""
    lines, may = [], False
    for entry, shown in _found(access, name):
        identity = shown.within(namespace)
        by = f"{identity.source[3:]}, with {roles.named(identity.rights)}, which {left(entry.expires)}"
        try:
            if access.current(shown) is None:
                lines.append(f"no, by {by}")
                continue
            access.check(identity, asked)
        except PermissionDeniedError:
            lines.append(f"no, by {by}: {asked.name} needs the role {roles.NAMES[asked.needs]}")
            continue
        may = True
        if asked.plain is not None and not identity.rights & asked.needs:
            lines.append(f"in part, by {by}: only {asked.plain.words}")
        else:
            lines.append(f"yes, by {by}")
    return Answer(may, "\n".join(f"{name}: {each}" for each in lines))
