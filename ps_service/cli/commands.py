"""The commands of `ps-service`: serve, status, sessions and evict."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import pydantic
import torch
import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from ps_service import config
from ps_service.cli import logs, probe, sessions_view, status_view
from ps_service.config import OwnerConfig
from ps_service.engine import Engine
from ps_service.functions.group import Level
from ps_service.functions.offered import TorchFunctions
from ps_service.hosting.allowlist import AllowList
from ps_service.server import Server
from ps_wire.errors import PsError, UnavailableError
from ps_wire.limits import MAX_SEGMENT_BYTES, Limits
from ps_wire.shared_memory import descriptors
from ps_wire.v1.operations_pb2 import EvictRequest
from trainer_client.rpc.lifecycle import join
from trainer_client.session.settings import Settings

if TYPE_CHECKING:
    from trainer_client.rpc.agent import Agent

_log = logging.getLogger(__name__)

_STOP_SECONDS: Final = 1.0
"""Seconds that stopping may take once the checkpoint is written."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""
A parameter server for PyTorch: models live here, trainers connect over gRPC.

**Start an owner** that may host the classes marked `@hosted` in a module of yours:

    ps-service serve --name ps0 --listen 127.0.0.1:50051 --import my_models

**Look at it**:

    ps-service status 127.0.0.1:50051
    ps-service sessions 127.0.0.1:50051

**Train with it**, in as many processes as you like:

    async with trainer_client.connect("127.0.0.1:50051") as ps:
        net = await ps.module("my_models.Net", name="net")
""",
)


def _field(name: str) -> str:
    return OwnerConfig.model_fields[name].description or ""


@app.command()
def serve(
    name: Annotated[str | None, typer.Option(help=_field("name"))] = None,
    listen: Annotated[str | None, typer.Option(help=_field("listen"))] = None,
    imports: Annotated[list[str] | None, typer.Option("--import", help=_field("imports"))] = None,
    directory: Annotated[str | None, typer.Option(help=_field("directory"))] = None,
    advertise: Annotated[str | None, typer.Option(help=_field("advertise"))] = None,
    http: Annotated[str | None, typer.Option(help=_field("http"))] = None,
    data_dir: Annotated[str | None, typer.Option(help=_field("data_dir"))] = None,
    device: Annotated[str | None, typer.Option(help=_field("device"))] = None,
    threads: Annotated[int | None, typer.Option(help=_field("threads"))] = None,
    spare_threads: Annotated[int | None, typer.Option(help=_field("spare_threads"))] = None,
    torch_threads: Annotated[int | None, typer.Option(help=_field("torch_threads"))] = None,
    max_message_bytes: Annotated[int | None, typer.Option(help=_field("max_message_bytes"))] = None,
    max_in_flight: Annotated[int | None, typer.Option(help=_field("max_in_flight"))] = None,
    max_session_bytes: Annotated[int | None, typer.Option(help=_field("max_session_bytes"))] = None,
    max_owner_bytes: Annotated[int | None, typer.Option(help=_field("max_owner_bytes"))] = None,
    max_context_bytes: Annotated[int | None, typer.Option(help=_field("max_context_bytes"))] = None,
    max_result_bytes: Annotated[int | None, typer.Option(help=_field("max_result_bytes"))] = None,
    max_object_bytes: Annotated[int | None, typer.Option(help=_field("max_object_bytes"))] = None,
    torch_functions: Annotated[str | None, typer.Option(help=_field("torch_functions"))] = None,
    lease_seconds: Annotated[float | None, typer.Option(help=_field("lease_seconds"))] = None,
    max_context_seconds: Annotated[float | None, typer.Option(help=_field("max_context_seconds"))] = None,
    drain_seconds: Annotated[float | None, typer.Option(help=_field("drain_seconds"))] = None,
    shared_memory: Annotated[
        bool | None, typer.Option("--shared-memory/--no-shared-memory", help=_field("shared_memory"))
    ] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help=_field("insecure"))] = None,
    log_level: Annotated[str | None, typer.Option(help=_field("log_level"))] = None,
    log_format: Annotated[str | None, typer.Option(help=_field("log_format"))] = None,
    file: Annotated[Path | None, typer.Option("--config", help="A TOML file with any of these settings.")] = None,
) -> None:
    """Runs an owner until it receives SIGTERM or Ctrl-C; then it drains and exits with code 0.

    Every option can also be set as `PS_…` in the environment or in the TOML file; flags win over the environment, and
    the environment over the file. When the owner is ready it prints one line: `ps0 is serving on 127.0.0.1:50051`;
    with `--http`, the next line has the URL of its metrics.
    """
    modules = tuple(part for entry in imports or () for part in entry.split(","))
    settings = _load(
        file,
        name=name,
        listen=listen,
        imports=modules or None,
        directory=directory,
        advertise=advertise,
        http=http,
        data_dir=data_dir,
        device=device,
        threads=threads,
        spare_threads=spare_threads,
        torch_threads=torch_threads,
        max_message_bytes=max_message_bytes,
        max_in_flight=max_in_flight,
        max_session_bytes=max_session_bytes,
        max_owner_bytes=max_owner_bytes,
        max_context_bytes=max_context_bytes,
        max_result_bytes=max_result_bytes,
        max_object_bytes=max_object_bytes,
        torch_functions=torch_functions,
        lease_seconds=lease_seconds,
        max_context_seconds=max_context_seconds,
        drain_seconds=drain_seconds,
        shared_memory=shared_memory,
        insecure=insecure,
        log_level=log_level,
        log_format=log_format,
    )
    logs.configure(settings.log_level, settings.log_format)
    # Modules in the current directory can be imported, as with `python -m`.
    sys.path.insert(0, os.getcwd())
    try:
        descriptors.raise_limit()
        _runner()(_serve(_server(settings), settings))
    except (ImportError, ValueError, OSError) as error:
        _fail(str(error))


@app.command()
def status(
    address: Annotated[str, typer.Argument(help="Where the owner listens, such as 127.0.0.1:50051.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 5.0,
) -> None:
    """Shows an owner: objects, parameters, bytes, sessions, contexts, versions of optimizers, calls per second."""
    try:
        reply = probe.status(address, timeout)
    except UnavailableError as error:
        _fail(str(error))
    if as_json:
        _print_json(reply)
    else:
        status_view.show(reply)


@app.command()
def sessions(
    address: Annotated[str, typer.Argument(help="Where the owner listens, such as 127.0.0.1:50051.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 5.0,
) -> None:
    """Lists the sessions of trainers and the open contexts, with what each of them holds."""
    try:
        reply = probe.sessions(address, timeout)
    except UnavailableError as error:
        _fail(str(error))
    if as_json:
        _print_json(reply)
    else:
        sessions_view.show(reply)


@app.command()
def evict(
    address: Annotated[str, typer.Argument(help="Where the owner listens, such as 127.0.0.1:50051.")],
    session: Annotated[str | None, typer.Option(help="Session to end: its id, or the beginning of that.")] = None,
    context: Annotated[str | None, typer.Option(help="Context to end, by its id.")] = None,
    older_than: Annotated[
        float | None, typer.Option(min=0.0, help="End all contexts that no request has used for so many seconds.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 5.0,
) -> None:
    """Ends a session or contexts, as `ps-service sessions` lists them, and frees what they hold.

    The trainer of an ended session gets `SessionLostError`, and may continue with a new session. An ended context
    raises `ContextLostError` when it is used again; its trainer's other contexts are not affected. The exit code is 1
    if there is no such session or context, or if the id is ambiguous.
    """
    if sum(each is not None for each in (session, context, older_than)) != 1:
        _fail("give one of --session, --context and --older-than")
    try:
        request = EvictRequest(session=session, context=context, unused_seconds=older_than)
        reply = probe.evict(address, request, timeout)
    except UnavailableError as error:
        _fail(str(error))
    except PsError as error:
        _fail(str(error), 1)
    for each in reply.sessions:
        print(f"session {each} was ended")
    for each in reply.contexts:
        print(f"context {each} was ended")
    if not reply.sessions and not reply.contexts:
        print(f"no context had been unused for {older_than:g} s")


def main() -> None:
    """Entry point of the command `ps-service`."""
    app()


def _load(file: Path | None, **flags: Any) -> OwnerConfig:
    try:
        return config.load(file, **flags)
    except pydantic.ValidationError as error:
        lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        _fail("the configuration is not valid:\n  " + "\n  ".join(lines))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        _fail(f"the configuration cannot be read: {error}")


def _server(settings: OwnerConfig) -> Server:
    return Server(_engine(settings), settings.listen, settings.insecure, settings.http)


def _engine(settings: OwnerConfig) -> Engine:
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    return Engine(
        name=settings.name,
        allowlist=AllowList.importing(settings.imports, TorchFunctions(Level[settings.torch_functions.upper()])),
        device=torch.device(settings.device),
        limits=Limits(
            max_message_bytes=settings.max_message_bytes,
            max_in_flight=settings.max_in_flight,
            lease_seconds=settings.lease_seconds,
            max_segment_bytes=MAX_SEGMENT_BYTES if settings.shared_memory else 0,
            max_session_bytes=settings.max_session_bytes,
            max_owner_bytes=settings.max_owner_bytes,
            max_context_bytes=settings.max_context_bytes,
            max_result_bytes=settings.max_result_bytes,
            max_object_bytes=settings.max_object_bytes,
            max_context_seconds=settings.max_context_seconds,
        ),
        threads=settings.threads,
        spare_threads=settings.spare_threads,
        data_dir=settings.data_dir,
    )


async def _serve(server: Server, settings: OwnerConfig) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await server.start()
    member = await _join(server, settings)
    print(f"{settings.name} is serving on {server.address}", flush=True)
    if server.http_address:
        print(f"{settings.name} serves metrics at http://{server.http_address}/metrics", flush=True)
    await stopping.wait()
    # A second signal ends the process without draining.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    _log.info("draining")
    # Python waits for its threads at exit, and hosted code that never returns holds one.
    ended = threading.Event()
    patience = None if settings.data_dir is not None else settings.drain_seconds
    threading.Thread(target=_end_at_once, args=(server, patience, ended), daemon=True).start()
    try:
        if member is not None:
            await member.leave(settings.drain_seconds)
        else:
            await server.drain(settings.drain_seconds)
    finally:
        ended.set()


async def _join(server: Server, settings: OwnerConfig) -> Agent | None:
    """Makes the owner a member of a group, if one is configured."""
    if not settings.directory:
        return None
    directory = "" if settings.directory == "self" else settings.directory
    try:
        return await join(server, Settings(shared_memory=settings.shared_memory), directory, settings.advertise)
    except PsError as error:
        raise OSError(f"cannot join the group at {settings.directory}: {error}") from error


def _end_at_once(server: Server, patience: float | None, ended: threading.Event) -> None:
    server.kept.wait(patience)
    if ended.wait(_STOP_SECONDS):
        return
    _log.warning("hosted code is still running; the process ends without it")
    os._exit(1 if server.failed else 0)


def _runner() -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def _print_json(reply: Message) -> None:
    always = MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    print(json.dumps(always, indent=2))


def _fail(message: str, code: int = 2) -> NoReturn:
    typer.secho(f"ps-service: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(code)
