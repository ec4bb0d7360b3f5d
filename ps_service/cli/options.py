"""Options of `ps-service serve`, one for each field of the configuration; those with which the other commands reach
owners; help texts, and completion in a shell."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from ps_service.cli.ending import reading
from ps_service.config import OwnerConfig
from ps_wire.tls import TLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typer.models import CommandInfo

OwnersTLS = TLS | None
"""The certificates with which a command reaches owners; None reaches them in plain text."""

OF_ONE: Final = ("name", "listen", "advertise", "directory", "until_eof")
"""Settings that several owners of one machine cannot share, and that whoever starts them gives to each."""

_AS_IT_IS: Final = "\b\n"
"""What stands before a paragraph whose lines click must not join."""

_BASH: Final = """\
# Completion of ps-service for bash, and for zsh after: autoload -U +X bashcompinit && bashcompinit
_ps_service() {
    local current="${COMP_WORDS[COMP_CWORD]}" words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="COMMANDS"
    else
        case "${COMP_WORDS[COMP_CWORD-1]}" in
VALUES
            *) case "$current" in
                -*) case "${COMP_WORDS[1]}" in
OPTIONS
                esac ;;
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _ps_service ps-service
"""


_TLS: Final = {
    "tls_ca": "Authorities (PEM), one of which has signed the certificate of the owner: reaches it over TLS.",
    "tls_cert": "A certificate of one's own (PEM), if the owner asks for one.",
    "tls_key": "Its private key (PEM).",
    "tls_server_name": "The name in the certificates of owners, if not that of their address.",
}


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for each field of `OwnerConfig`, by name; it gets None for what is not given."""
    return _with_settings(command, OwnerConfig.model_fields, hidden=False)


def with_settings_of_owners(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command that starts several owners the options that it has not itself and that may be the same for all.
    Its help does not list them."""
    own = inspect.signature(command, eval_str=True).parameters
    return _with_settings(command, [name for name in OwnerConfig.model_fields if name not in {*own, *OF_ONE}], True)


def flags_of(given: Mapping[str, Any]) -> list[str]:
    """The arguments of `ps-service serve` with which it gets these values of `OwnerConfig`, None for what is not
    given."""
    found = []
    for name, value in given.items():
        flag = _flag(name, OwnerConfig.model_fields[name])
        match value:
            case None | []:
                continue
            case bool():
                found.append(flag if value else f"--no-{flag.removeprefix('--')}")
            case list():
                found += [part for each in value for part in (flag, str(each))]
            case _:
                found += [flag, str(value)]
    return found


def _with_settings(command: Callable[..., None], fields: Iterable[str], hidden: bool) -> Callable[..., None]:
    def with_options(**given: Any) -> None:
        command(**given)

    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [
        *(_option(name, hidden) for name in fields),
        *(each.replace(kind=Parameter.KEYWORD_ONLY) for each in own if each.kind is not Parameter.VAR_KEYWORD),
    ]
    return _as(command, with_options, parameters)


def with_tls(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command that asks owners the options of `TLS`, each with its variable; it gets `OwnersTLS` as
    `tls`."""

    def with_options(*, tls_ca: Path | None, tls_cert: Path | None, tls_key: Path | None, **given: Any) -> None:
        server_name: str = given.pop("tls_server_name")
        is_used = tls_ca or tls_cert or tls_key or server_name
        with reading("the certificates"):
            tls = TLS(tls_ca, tls_cert, tls_key, server_name) if is_used else None
        command(**given, tls=tls)

    own = inspect.signature(command, eval_str=True).parameters.values()
    return _as(command, with_options, [*(each for each in own if each.name != "tls"), *map(_tls_option, _TLS)])


def _tls_option(name: str) -> Parameter:
    default, kind = ("", str) if name == "tls_server_name" else (None, Path | None)
    option = typer.Option(f"--{name.replace('_', '-')}", help=_TLS[name], envvar=f"PS_{name.upper()}")
    annotation = Annotated[kind, option]  # type: ignore[valid-type]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _as(
    command: Callable[..., None], with_options: Callable[..., None], parameters: list[Parameter]
) -> Callable[..., None]:
    """Gives a function the name and text of a command, and the parameters that typer reads."""
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def _option(name: str, hidden: bool) -> Parameter:
    field = OwnerConfig.model_fields[name]
    flag = _flag(name, field)
    if field.default is True:
        flag += f"/--no-{flag.removeprefix('--')}"
    text = f"{field.description} ({_fallback(field.alias or name, field)})"
    option = typer.Option(flag, help=text, hidden=hidden)
    kind = Annotated[_kind(field.annotation) | None, option]  # type: ignore[valid-type]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _flag(name: str, field: FieldInfo) -> str:
    return f"--{(field.alias or name).replace('_', '-')}"


def _fallback(key: str, field: FieldInfo) -> str:
    """Where the setting comes from without the flag: a variable of the environment, else the default."""
    match field.default:
        case bool():
            default = "on" if field.default else "off"
        case None | "" | ():
            default = "none"
        case _:
            default = str(field.default)
    return f"PS_{key.upper()}; default: {default}"


def _kind(annotation: Any) -> Any:
    """What the command line makes of a field; the configuration checks and converts the rest."""
    if annotation in (bool, int, float):
        return annotation
    return list[str] if annotation == tuple[str, ...] else str


def first_of(addresses: str) -> str:
    """The first of addresses that are separated by commas: `PS_ADDRESS` has those of all owners for trainers."""
    return addresses.partition(",")[0].strip()


def laid_out(text: str) -> str:
    """A text whose indented paragraphs stay as they are."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"{_AS_IT_IS}{each}" if each.startswith("    ") else each for each in paragraphs)


def tell(command: CommandInfo) -> None:
    """Gives a command its help text, and its first sentence, whole, as the line in the list of commands."""
    text = inspect.cleandoc((command.callback and command.callback.__doc__) or "")
    command.help = laid_out(text)
    command.short_help = " ".join(text.partition("\n\n")[0].split())


def completion_script(commands: Mapping[str, Iterable[str]]) -> str:
    """A script for commands with these flags, which does not start Python for each word.

    Where it knows no words, the shell completes names of files.
    """
    options = "\n".join(f'                    {name}) words="{" ".join(flags)}" ;;' for name, flags in commands.items())
    values = "\n".join(f'            {flag}) words="{" ".join(words)}" ;;' for flag, words in _values().items())
    words = " ".join((*commands, "--help", "--version"))
    return _BASH.replace("COMMANDS", words).replace("VALUES", values).replace("OPTIONS", options)


def _values() -> dict[str, tuple[str, ...]]:
    """The flags of `serve` that take one of a few words, and these words."""
    found = {}
    for name, field in OwnerConfig.model_fields.items():
        if get_origin(field.annotation) is Literal:
            found[_flag(name, field)] = get_args(field.annotation)
    return found
