"""Options of `ps-service serve`, one for each field of the configuration; and help texts of commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic.fields import FieldInfo

from ps_service.config import OwnerConfig

if TYPE_CHECKING:
    from typer.models import CommandInfo

_AS_IT_IS: Final = "\b\n"
"""What stands before a paragraph whose lines click must not join."""


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for each field of `OwnerConfig`, before options of its own.

    The command takes the settings by keyword, named as their fields; what was not given is None.
    """

    def with_options(**given: Any) -> None:
        command(**given)

    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [
        *(_option(name) for name in OwnerConfig.model_fields),
        *(each.replace(kind=Parameter.KEYWORD_ONLY) for each in own if each.kind is not Parameter.VAR_KEYWORD),
    ]
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    # What typer reads.
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def _option(name: str) -> Parameter:
    field = OwnerConfig.model_fields[name]
    flag = "--" + (field.alias or name).replace("_", "-")
    if field.default is True:
        flag += f"/--no-{flag.removeprefix('--')}"
    option = typer.Option(flag, help=f"{field.description} ({_fallback(field.alias or name, field)})")
    kind = Annotated[_kind(field.annotation) | None, option]  # type: ignore[valid-type]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)


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


def laid_out(text: str) -> str:
    """A text whose indented paragraphs stay as they are."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"{_AS_IT_IS}{each}" if each.startswith("    ") else each for each in paragraphs)


def tell(command: CommandInfo) -> None:
    """Gives a command its help text, and its first sentence, whole, as the line in the list of commands."""
    text = inspect.cleandoc((command.callback and command.callback.__doc__) or "")
    command.help = laid_out(text)
    command.short_help = " ".join(text.partition("\n\n")[0].split())
