"""The commands `ps-service token` and `ps-service access`: identities, their tokens, and what they may do."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ps_service.access import explaining, namespaces, roles
from ps_service.access.access import Access
from ps_service.access.entries import left, seconds_of
from ps_service.access.token_file import TokenFile
from ps_service.cli.ending import asking, fail
from ps_service.cli.options import tell
from ps_service.monitoring.paths import PATHS
from ps_service.requests.needs import NEEDS
from ps_service.rpc.methods import OTHERS

if TYPE_CHECKING:
    from ps_service.access.access import Asked

_File = Annotated[Path, typer.Option("--file", help="The file of --token-file.", envvar="PS_TOKEN_FILE")]

token_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
access_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@token_app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the identity. Several tokens may have the same one.")],
    file: _File,
    role: Annotated[list[str] | None, typer.Option(help=f"A role: {', '.join(roles.ROLES)} (several times).")] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="NAMESPACE=ROLE: a role in another namespace than default (several times).")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="How long it is valid: 30d, 12h, 15m. [default: for ever]")
    ] = None,
    certificate: Annotated[
        list[str] | None, typer.Option(help="A name in a trainer's certificate, instead of a token (several times).")
    ] = None,
) -> None:
    """Adds an identity, and prints its new token once. The file has a hash of it only.

        ps-service token add alice --role trainer --expires 30d --file tokens

    Owners that run read the file again within a second.
    """
    with asking():
        until = None if expires is None else time.time() + seconds_of(expires)
        own = tuple(dict.fromkeys(role or ()))
        token = TokenFile(file).add(name, own, until, tuple(certificate or ()), _spaces(namespace or []))
    if token:
        print(token)


@token_app.command(name="list")
def show(file: _File, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Lists the identities, with their roles and until when they are valid."""
    with asking():
        entries = TokenFile(file).read()
    if as_json:
        for each in entries:
            print(each.line())
        return
    table = Table("identity", "roles", "shown by", "valid", box=None)
    for each in entries:
        by = ", ".join(filter(None, ["a token" if each.hash else "", *each.certificates]))
        within = [f"{', '.join(own)} in {namespace}" for namespace, own in each.namespaces]
        table.add_row(
            each.name, "; ".join(filter(None, [", ".join(each.roles), *within])), Text(by), left(each.expires)
        )
    Console().print(table)


@token_app.command()
def revoke(name: Annotated[str, typer.Argument(help="Name of the identity.")], file: _File) -> None:
    """Removes an identity with all its tokens. Owners end its sessions within a second."""
    with asking():
        count = TokenFile(file).revoke(name)
    print(f"{name} was revoked ({count} {'entry' if count == 1 else 'entries'})")


def _asked() -> tuple[Asked, ...]:
    """All that a caller can ask for."""
    return (*NEEDS.values(), *OTHERS.values(), *PATHS.values())


def _spaces(given: list[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    for each in given:
        namespace, equals, role = each.partition("=")
        if not equals or not namespaces.checked(namespace):
            fail(f"{each!r} is not NAMESPACE=ROLE; for the default namespace there is --role")
        found.setdefault(namespace, []).append(role)
    return tuple((namespace, tuple(dict.fromkeys(own))) for namespace, own in found.items())


@access_app.callback()
def matrix(
    context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Prints which role each operation needs, and what callers without it may still do."""
    if context.invoked_subcommand is not None:
        return
    if as_json:
        print(json.dumps(explaining.matrix(_asked()), indent=2))
        return
    table = Table("operation", *roles.ROLES, "and", box=None)
    for each in _asked():
        marks = [explaining.mark(each, bits) for bits in roles.ROLES.values()]
        table.add_row(each.name, *marks, "" if each.plain is None else f"(yes): {each.plain.words}")
    Console().print(table)


@access_app.command()
def explain(
    name: Annotated[str, typer.Argument(help="Name of an identity.")],
    what: Annotated[str, typer.Argument(help="An operation of ps-service access, or the name of an object.")],
    file: _File,
    namespace: Annotated[str, typer.Option(help="The namespace.", envvar="PS_NAMESPACE")] = namespaces.DEFAULT,
) -> None:
    """Says whether an identity may do something, or what it may do with an object, and why.

    The exit code is 1 if it may not, or may do nothing with the object.
    """
    asked = next((each for each in _asked() if each.name == what), None)
    with asking():
        access, within = Access("ps", TokenFile(file)), namespaces.checked(namespace)
        if asked is None:
            answer = explaining.explain_object(access, name, namespaces.within(what), namespaces.of(what) or within)
        else:
            answer = explaining.explain(access, name, asked, within)
    print(answer.text)
    if not answer.may:
        raise typer.Exit(1)


for _each in (*token_app.registered_commands, *access_app.registered_commands):
    tell(_each)
