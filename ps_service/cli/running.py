"""The command `ps-service run`: owners and trainers on this machine, together."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ps_service import config
from ps_service.cli.ending import fail, reading
from ps_service.cli.options import flags_of, with_settings_of_owners
from ps_service.launch.job import Job, Plan


@with_settings_of_owners
def run(
    program: Annotated[str, typer.Argument(help="The program of the trainers, as for python; with -m a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Its arguments.")] = None,
    owners: Annotated[int, typer.Option(min=1, help="How many owners: ps0, ps1 and so on.")] = 1,
    trainers: Annotated[int, typer.Option(min=1, help="How many trainers: ranks 0, 1 and so on.")] = 1,
    module: Annotated[bool, typer.Option("-m", "--module", help="The program is a module, as with python -m.")] = False,
    imports: Annotated[
        list[str] | None, typer.Option("--import", help="Modules of hosted classes, as for ps-service serve.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder in which each owner has one of its name, and goes on from it.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(help="Host and port of the page of ps0; that of ps1 is at the next port, and so on.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of ps0; that of ps1 is the next one. 0 takes free ones.")
    ] = 0,
    restarts: Annotated[
        int,
        typer.Option(min=0, help="How often each trainer that dies, and each owner with --data-dir, is started again."),
    ] = 0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for a trainer to end before it is killed.")] = 30.0,
    file: Annotated[Path | None, typer.Option("--config", help="A TOML file with settings of owners.")] = None,
    **flags: Any,
) -> None:
    """Runs owners and trainers on this machine, until all trainers have finished or one process has failed.

    Each trainer runs the program, and finds its owners with tc.connect(), without an address:

        ps-service run --owners 2 --trainers 4 --import my_models train.py --epochs 3

    It has RANK, WORLD_SIZE and LOCAL_RANK in its environment, PS_ADDRESS for tc.connect(), and MASTER_ADDR and
    MASTER_PORT, a free port, for torch.distributed. Every further option of `ps-service serve` that stands before the
    program is one of each owner.

    The exit status is that of the first process that fails. Ctrl-C and SIGTERM end the trainers, then the owners drain;
    the second one kills all. No owner and no trainer is left, however this command ends.
    """
    _check(program, module, owners, port)
    flags |= {"imports": imports}
    with reading("the configuration"):
        # Whether there is such a device only torch knows, and each owner says.
        checked = {name: value for name, value in flags.items() if name != "device"}
        settings = config.load(file, **checked, data_dir=data_dir, http=http)
    if settings.until_eof:
        fail("until_eof would have the owners drain at once, because their standard input is empty")
    if settings.log_format == "auto":  # behind a prefix no line is JSON
        flags["log_format"] = "text"
    common = [*flags_of(flags), *(["--config", str(file)] if file else [])]
    each = [[*common, *own_flags(settings, number)] for number in range(owners)]
    command = [sys.executable, *(["-m"] if module else []), program, *(arguments or [])]
    if names := left_aside(settings.data_dir, owners):
        _tell(f"{settings.data_dir} has the state of {', '.join(names)}, too, which is not started: see --owners")
    plan = Plan(each, command, trainers, restarts, settings.data_dir is not None, grace, port)
    try:
        status = asyncio.run(_run(plan))
    except OSError as error:
        fail(str(error))
    raise typer.Exit(status)


def _check(program: str, module: bool, owners: int, port: int) -> None:
    """Ends the command with an error if it could not start."""
    if not module and not Path(program).is_file():
        fail(f"there is no file {program}; for a module, give -m before its name")
    if port and port + owners > 1 << 16:
        fail(f"{owners} owners from port {port} on would need ports above 65535")
    if sys.stdout is None or sys.stderr is None:
        fail("standard output or standard error is closed: the lines of owners and trainers go there")


async def _run(plan: Plan) -> int:
    return await Job(plan, _tell).run()


def own_flags(settings: config.OwnerConfig, number: int) -> list[str]:
    """The options that only one of the owners has."""
    http, folder, direct = settings.http, settings.data_dir, settings.direct_port
    if http:
        host, _, port = http.rpartition(":")
        http = f"{host}:{int(port) and int(port) + number}"
    direct_port = direct + number if isinstance(direct, int) and direct else None
    return flags_of({"http": http or None, "data_dir": folder and folder / f"ps{number}", "direct_port": direct_port})


def left_aside(folder: Path | None, owners: int) -> list[str]:
    """The names of owners that have a folder in the data directory, and are not among the first so many."""
    names = {path.name for path in folder.glob("ps*")} if folder is not None else set()
    return sorted(name for name in names if re.fullmatch(r"ps(0|[1-9]\d*)", name) and int(name[2:]) >= owners)


def _tell(text: str) -> None:
    with suppress(OSError):  # nobody reads it, and all has to end nevertheless
        typer.secho(f"ps-service: {text}", err=True)
