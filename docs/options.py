"""Prints the page that lists all commands and options: `python docs/options.py > docs/options.md`."""

from __future__ import annotations

import inspect
from typing import Any, Final

from typer.main import get_command

from ps_service.cli.commands import app
from ps_service.config import OwnerConfig

_HEAD: Final = """\
# Options

All commands of `ps-service`, with their options, variables and defaults. `ps-service COMMAND --help` prints the same
for one command, and `ps-service --version` the release.

This page is written by `python docs/options.py > docs/options.md` (or `make pages`); a test holds it against the code.

"""

_SERVE: Final = """\
Each option is a flag, a variable of the environment, and a key of the TOML file that `--config`
names. Flags win over variables, and variables over the file. [deploy/owner.toml](../deploy/owner.toml) is such a file
with the defaults. [limits.md](limits.md) says what happens at each bound.

| flag | variable | key | default | meaning |
|---|---|---|---|---|
"""

_RUN: Final = """\
[Run owners and trainers with one command](guide/run.md) says what it does. Every other option of `ps-service serve`
that stands before the program is handed on to each owner.

"""

_TAIL: Final = """\
## Completion in a shell

```console
$ source <(ps-service completion)                                                       # bash, for this terminal
$ ps-service completion > ~/.local/share/bash-completion/completions/ps-service         # bash, from now on
$ autoload -U +X bashcompinit && bashcompinit && source <(ps-service completion)        # zsh, in ~/.zshrc
```

## Variables that others have defined

| variable | meaning |
|---|---|
| `OMP_NUM_THREADS`, `MKL_NUM_THREADS` | [threads of torch](guide/fast.md#threads-of-torch), without `--torch-threads` |
| `MASTER_ADDR`, `MASTER_PORT`, `RANK` | where and with which rank `rpc.init_rpc` joins, as in torch |
| `GRPC_ENABLE_FORK_SUPPORT` | 0 to import `grpc` before `trainer_client`, and [fork](guide/connect.md#forks) |
| `MALLOC_…`, `GLIBC_TUNABLES` | if one of them sets malloc, owners leave it as it is |
| `XDG_CACHE_HOME` | where owners keep compiled code of tables; `~/.cache` otherwise |
"""


def page() -> str:
    """The page, as Markdown."""
    commands = get_command(app).commands  # type: ignore[attr-defined]
    named = [
        (f"{name} {part}".rstrip(), each)
        for name, command in commands.items()
        for part, each in getattr(command, "commands", {"": command}).items()
    ]
    return _HEAD + "".join(f"{_section(name, each)}\n" for name, each in named) + _TAIL


def _section(name: str, command: Any) -> str:
    arguments = " ".join(each.name.upper() for each in command.params if each.param_type_name == "argument")
    text = inspect.cleandoc(command.help or "").partition("\n\n")[0].replace("\n", " ")
    usage = f"ps-service {name} [OPTIONS] {arguments}".rstrip()
    heading = f"## ps-service {name}\n\n`{usage}`: {_begun(text)}\n\n"
    if name == "run":
        heading += _RUN
    if name == "serve":
        rows = "".join(f"{_row(field)}\n" for field in OwnerConfig.model_fields)
        return f"{heading}{_SERVE}{rows}| `--config` | | | | A TOML file with any of these settings. |\n"
    if not command.params:
        return heading
    table = "| argument | variable | default | meaning |\n|---|---|---|---|\n"
    return heading + table + "".join(_parameter(each) for each in command.params if not getattr(each, "hidden", False))


def _begun(text: str) -> str:
    return text[:1].lower() + text[1:]


def _row(name: str) -> str:
    field = OwnerConfig.model_fields[name]
    key = field.alias or name
    flag = f"--{key.replace('_', '-')}"
    if field.default is True:
        flag = f"--no-{key.replace('_', '-')}"
    cells = [f"`{flag}`", f"`PS_{key.upper()}`", f"`{key}`", _shown(field.default), field.description or ""]
    return f"| {' | '.join(cells)} |"


def _parameter(each: Any) -> str:
    named = f"`{each.name.upper()}`" if each.param_type_name == "argument" else f"`{each.opts[0]}`"
    default = "required" if each.required else _shown(each.default)
    variable = f"`{each.envvar}`" if each.envvar else ""
    return f"| {named} | {variable} | {default} | {each.help or ''} |\n"


def _shown(default: Any) -> str:
    match default:
        case bool():
            return "on" if default else "off"
        case "" | None | () | []:
            return ""
        case _:
            return f"`{default}`"


if __name__ == "__main__":
    print(page(), end="")
