"""A script with which a shell completes `ps-service`, without starting Python, whose imports take seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args, get_origin

from ps_service.config import OwnerConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


def script(commands: Mapping[str, Iterable[str]]) -> str:
    """The script, for commands with these flags. Where it knows no words, the shell completes names of files."""
    options = "\n".join(f'                    {name}) words="{" ".join(flags)}" ;;' for name, flags in commands.items())
    values = "\n".join(f'            {flag}) words="{" ".join(words)}" ;;' for flag, words in _values().items())
    words = " ".join((*commands, "--help", "--version"))
    return _BASH.replace("COMMANDS", words).replace("VALUES", values).replace("OPTIONS", options)


def _values() -> dict[str, tuple[str, ...]]:
    """The flags of `serve` that take one of a few words, and these words."""
    found = {}
    for name, field in OwnerConfig.model_fields.items():
        if get_origin(field.annotation) is Literal:
            found[f"--{(field.alias or name).replace('_', '-')}"] = get_args(field.annotation)
    return found
