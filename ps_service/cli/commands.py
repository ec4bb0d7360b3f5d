"""The commands of `ps-service`.

The modules of commands import torch, and what needs it, inside of the functions that use it: its import takes seconds,
and what only asks an owner or reads files is to answer at once.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from functools import cache, partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as release_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from typer.main import get_command

from ps_service import config
from ps_service.cli import old_tls, probe, status_view, watching
from ps_service.cli.certs import certs
from ps_service.cli.ending import asking, fail, reading
from ps_service.cli.exporting import export
from ps_service.cli.inspecting import inspect
from ps_service.cli.keys import checkpoint_key, sign
from ps_service.cli.moving import drain, rebalance
from ps_service.cli.offline import replay, restore
from ps_service.cli.options import OwnersTLS, completion_script, first_of, laid_out, tell, with_settings, with_tls
from ps_service.cli.ray_commands import ray_app
from ps_service.cli.running import run
from ps_service.cli.tokens import access_app, token_app
from ps_service.monitoring.page_messages import plain
from ps_wire.release import RELEASE
from ps_wire.v1.operations_pb2 import CheckpointRequest, EvictRequest, SessionsRequest

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from rich.console import RenderableType

    from ps_wire.v1.operations_pb2 import CheckpointReply, EvictReply, SessionsReply

_DEFAULT_ADDRESS: Final = "127.0.0.1:50051"
_Address = Annotated[str, typer.Argument(help="Where the owner listens.", envvar="PS_ADDRESS", callback=first_of)]

app = typer.Typer(
    no_args_is_help=True,
    # Its tables cut names of options and variables in narrow terminals.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help=laid_out("""
A parameter server for PyTorch: models live here, trainers connect over gRPC.

Start an owner that may host the classes marked `@hosted` in a module of yours:

    ps-service serve --name ps0 --listen 127.0.0.1:50051 --import my_models

Look at it:

    ps-service status 127.0.0.1:50051
    ps-service sessions 127.0.0.1:50051

Train with it, in as many processes as you like:

    async with trainer_client.connect("127.0.0.1:50051") as ps:
        net = await ps.module("my_models.Net", name="net")
"""),
)


def _release_of_torch() -> str:
    try:
        return release_of("torch")
    except PackageNotFoundError:  # it was built, and not installed
        import torch

        return str(torch.__version__)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"ps-service {RELEASE} (Python {platform.python_version()}, torch {_release_of_torch()})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command()
@with_settings
def serve(
    file: Annotated[Path | None, typer.Option("--config", help="A TOML file with any of these settings.")] = None,
    **flags: Any,
) -> None:
    """Runs an owner until it receives SIGTERM or Ctrl-C; then it drains and exits with code 0.

    With --until-eof it also drains when its standard input ends. While it drains, a second signal changes nothing;
    SIGQUIT, or a third, ends it at once, without a checkpoint.

    Every option can also be set as `PS_…` in the environment or in the TOML file; flags win over the environment, and
    the environment over the file. When the owner is ready it prints one line: `ps0 is serving on 127.0.0.1:50051`;
    with `--http`, the next line has the URL of its metrics.
    """
    with reading("the configuration"):
        settings = config.load(file, **flags)
    if settings.tls_min_version == "1.2" and old_tls.is_refused():
        fail("a file is read too late for tls_min_version = 1.2: give --tls-min-version 1.2, or PS_TLS_MIN_VERSION")
    from ps_service.cli import logs, reloading, serving
    from ps_service.cli.engines import engine_of
    from ps_service.server import Server

    if settings.reload and not settings.imports:
        fail("--reload watches the modules of --import, and there is none")
    logs.configure(settings.log_level, settings.log_format)
    # Modules in the current directory can be imported, as with `python -m`.
    sys.path.insert(0, os.getcwd())
    try:
        watch = reloading.Watch(settings.imports) if settings.reload else None
        engine = engine_of(settings) if watch is None else watch.made(partial(engine_of, settings))
        serving.run(Server(engine, **settings.serving), settings, watch)
    except (ImportError, ValueError, OSError) as error:
        fail(str(error))


app.command(context_settings={"allow_interspersed_args": False})(run)


@app.command()
@with_tls
def status(
    address: _Address = _DEFAULT_ADDRESS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    group: Annotated[bool, typer.Option("--group", help="Show all owners of the group of this one.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every few seconds, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two answers with --watch.")] = 2.0,
    most: Annotated[
        int | None, typer.Option(min=1, help="Most entries of each list. [default: 20, and 1000 with --json]")
    ] = None,
    events: Annotated[int, typer.Option(min=0, max=1000, help="How many of the latest events to show.")] = 10,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 5.0,
    tls: OwnersTLS = None,
) -> None:
    """Shows an owner: trainers, optimizers, objects, tables, passes, memory, operations, and what has happened lately.

    The tables fit 80 columns. With --json, docs/status.md describes the fields; with --group and --json, the output has
    the lists `owners` and `missing`. The exit code is 2 if the owner does not answer.
    """
    if watch and (as_json or not sys.stdout.isatty()):
        fail("--watch needs a terminal, and goes without --json; call it again and again instead")
    rows = most or status_view.MOST_ROWS

    def view() -> RenderableType:
        if group:
            return status_view.group_view(probe.group(address, timeout, tls, most=rows, events=events), rows)
        show = status_view.fitted if watch else status_view.view
        return show(probe.status(address, timeout, tls, most=rows, events=events), rows)

    with asking():
        if as_json:
            ask = probe.group if group else probe.status
            print(json.dumps(ask(address, timeout, tls, most=most or 0, events=events).as_plain(), indent=2))
        elif watch:
            watching.watch(view, every)
        else:
            Console().print(view())


@app.command()
@with_tls
def sessions(
    address: _Address = _DEFAULT_ADDRESS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 5.0,
    tls: OwnersTLS = None,
) -> None:
    """Lists the sessions of trainers and the open contexts, with what each of them holds."""
    with asking():
        reply: SessionsReply = probe.ask(address, SessionsRequest(), timeout, tls)
    if as_json:
        _print_json(reply)
    else:
        status_view.show_sessions(reply)


@app.command()
@with_tls
def evict(
    address: _Address = _DEFAULT_ADDRESS,
    session: Annotated[str | None, typer.Option(help="Session to end: its id, or the beginning of that.")] = None,
    context: Annotated[str | None, typer.Option(help="Context to end, by its id.")] = None,
    older_than: Annotated[
        float | None, typer.Option(min=0.0, help="End all contexts that no request has used for this many seconds.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 5.0,
    tls: OwnersTLS = None,
) -> None:
    """Ends a session or contexts, as `ps-service sessions` lists them, and frees what they hold.

    The trainer of an ended session gets `SessionLostError`, and may continue with a new session. An ended context
    raises `ContextLostError` when it is used again; its trainer's other contexts are not affected. The exit code is 1
    if there is no such session or context, or if the id is ambiguous.
    """
    if sum(each is not None for each in (session, context, older_than)) != 1:
        fail("give one of --session, --context and --older-than")
    with asking():
        request = EvictRequest(session=session, context=context, unused_seconds=older_than)
        reply: EvictReply = probe.ask(address, request, timeout, tls)
    for each in reply.sessions:
        print(f"session {each} was ended")
    for each in reply.contexts:
        print(f"context {each} was ended")
    if not reply.sessions and not reply.contexts:
        print(f"no context had been unused for {older_than:g} s")


@app.command()
@with_tls
def checkpoint(
    address: _Address = _DEFAULT_ADDRESS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it is written.")] = 600.0,
    tls: OwnersTLS = None,
) -> None:
    """Has an owner write a checkpoint of its named objects into its data directory now, while it goes on.

    Steps wait while it is written, and the answer says for how long; forward and backward passes go on.
    """
    with asking():
        reply: CheckpointReply = probe.ask(address, CheckpointRequest(), timeout, tls)
    if as_json:
        _print_json(reply)
        return
    print(
        f"{reply.folder} of {reply.owner}: {reply.objects} objects, {reply.bytes:,} bytes in {reply.seconds:.2f} s; "
        f"steps waited for {reply.held_seconds:.2f} s"
    )
    for each in reply.left_out:
        print(f"not in it: {each}")


app.command()(inspect)
app.command()(rebalance)
app.command()(export)
app.command()(drain)


app.command()(replay)


@app.command()
def plan(
    file: Annotated[Path, typer.Argument(help="A TOML file that names tables and owners.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Says for planned tables and owners what lies where, and whether it fits. No owner has to run.

    The file:

        [owners]
        ps0 = "16GiB"  # memory for tables
        ps1 = "16GiB"

        [tables.items]
        rows = "50M"
        dim = 64
        # or { kind = "sgd", momentum = 0.9 }
        optimizer = "row_wise_adagrad"
        dtype = "float32"  # or float16, bfloat16
        owners = ["ps0", "ps1"]  # all if left out
        # if rows are evicted, which takes 8 to 16 bytes for each
        evict = { ttl = 86400.0 }

    The exit code is 1 if it does not fit.
    """
    from ps_service.cli import planning

    with reading(str(file)):
        tables, planned = planning.planned(file)
    if as_json:
        print(json.dumps(planning.as_json(planned, tables), indent=2))
    else:
        planning.show(planned, tables)
    if not planned.fits:
        raise typer.Exit(1)


app.command()(restore)


@app.command()
def completion() -> None:
    """Prints a script for the completion of commands and options in bash and zsh.

    In bash, once:

        ps-service completion > ~/.local/share/bash-completion/completions/ps-service
    """
    commands: dict[str, Any] = command().commands
    print(completion_script({name: _flags(each) for name, each in commands.items()}), end="")


app.command()(certs)
app.command()(checkpoint_key)
app.command()(sign)

for _each in app.registered_commands:
    tell(_each)
app.add_typer(token_app, name="token", short_help="Adds, lists and revokes identities and their tokens.")
app.add_typer(access_app, name="access", short_help="Prints which role each operation needs.")
app.add_typer(ray_app, name="ray", short_help="Starts, shows and ends owners that Ray places and restarts.")


def _flags(command: Any) -> list[str]:
    """The long flags of a command, without those that switch off what is off anyway."""
    parts = getattr(command, "commands", {"": command}).values()
    own = [flag for part in parts for each in part.params for flag in (*each.opts, *each.secondary_opts)]
    return [*dict.fromkeys(flag for flag in own if flag.startswith("--")), "--help"]


@cache
def command() -> Any:
    """What reads arguments and runs commands. It takes as long to make as some commands take."""
    return get_command(app)


def main() -> None:
    """Entry point of the command `ps-service`."""
    command()()


def _print_json(reply: Message) -> None:
    print(json.dumps(plain(reply), indent=2))
