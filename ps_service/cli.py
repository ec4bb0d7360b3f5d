"""The command line: `ps-service serve` and `ps-service status`."""

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
from typing import Annotated, Any, Final, NoReturn

import pydantic
import torch
import typer
from google.protobuf.json_format import MessageToDict

from ps_service import config, logs, status_view
from ps_service.config import OwnerConfig
from ps_service.engine.engine import Engine
from ps_service.rpc import probe
from ps_service.server import Server
from ps_service.state.allowlist import AllowList
from ps_wire.errors import PsError, UnavailableError
from ps_wire.limits import MAX_SEGMENT_BYTES, Limits
from trainer_client.rpc.agent import Agent
from trainer_client.rpc.current import set_agent
from trainer_client.settings import Settings

_log = logging.getLogger("ps_service.cli")

_STOP_SECONDS: Final = 1.0
"""How long stopping may take, when all that matters has been done."""

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
    torch_threads: Annotated[int | None, typer.Option(help=_field("torch_threads"))] = None,
    max_message_bytes: Annotated[int | None, typer.Option(help=_field("max_message_bytes"))] = None,
    max_in_flight: Annotated[int | None, typer.Option(help=_field("max_in_flight"))] = None,
    lease_seconds: Annotated[float | None, typer.Option(help=_field("lease_seconds"))] = None,
    drain_seconds: Annotated[float | None, typer.Option(help=_field("drain_seconds"))] = None,
    lane: Annotated[bool | None, typer.Option("--lane/--no-lane", help=_field("lane"))] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help=_field("insecure"))] = None,
    log_level: Annotated[str | None, typer.Option(help=_field("log_level"))] = None,
    log_format: Annotated[str | None, typer.Option(help=_field("log_format"))] = None,
    file: Annotated[Path | None, typer.Option("--config", help="A TOML file with any of these settings.")] = None,
) -> None:
    """Runs an owner until it receives SIGTERM or Ctrl-C; then it drains and exits with code 0.

    Every option can also be set as `PS_…` in the environment or in the TOML file; flags win over the environment, and
    the environment over the file. When the owner is ready it prints one line: `ps0 is serving on 127.0.0.1:50051`;
    with `--http`, the next says where its metrics are.
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
        torch_threads=torch_threads,
        max_message_bytes=max_message_bytes,
        max_in_flight=max_in_flight,
        lease_seconds=lease_seconds,
        drain_seconds=drain_seconds,
        lane=lane,
        insecure=insecure,
        log_level=log_level,
        log_format=log_format,
    )
    logs.configure(settings.log_level, settings.log_format)
    # Modules beside the user are found, as with `python -m`.
    sys.path.insert(0, os.getcwd())
    try:
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
        always = MessageToDict(reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        print(json.dumps(always, indent=2))
    else:
        status_view.show(reply)


def main() -> None:
    """Entry point of the command `ps-service`."""
    app()


def _load(file: Path | None, **flags: Any) -> OwnerConfig:
    try:
        return config.load(file, **flags)
    except pydantic.ValidationError as error:
        lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        _fail("the configuration does not fit:\n  " + "\n  ".join(lines))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        _fail(f"the configuration cannot be read: {error}")


def _server(settings: OwnerConfig) -> Server:
    return Server(_engine(settings), settings.listen, settings.insecure, settings.data_dir, settings.http)


def _engine(settings: OwnerConfig) -> Engine:
    if settings.torch_threads:
        torch.set_num_threads(settings.torch_threads)
    return Engine(
        name=settings.name,
        allowlist=AllowList.importing(settings.imports),
        device=torch.device(settings.device),
        limits=Limits(
            settings.max_message_bytes,
            settings.max_in_flight,
            settings.lease_seconds,
            MAX_SEGMENT_BYTES if settings.lane else 0,
        ),
        threads=settings.threads,
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
        print(f"{settings.name} tells its metrics at http://{server.http_address}/metrics", flush=True)
    await stopping.wait()
    # A second signal does not wait.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    _log.info("draining")
    # Hosted code that never returns holds its thread, and Python waits for its threads.
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
    """Makes the owner a member of a group, if it was told of one: only then does it need a client."""
    if not settings.directory:
        return None
    member = Agent(server, Settings(lane=settings.lane), settings.advertise)
    try:
        await member.join("" if settings.directory == "self" else settings.directory)
    except PsError as error:
        # Not `leave`, which would write a checkpoint of an owner that nobody has used.
        await member.client.close()
        await server.stop()
        raise OSError(f"cannot join the group at {settings.directory}: {error}") from error
    set_agent(member)
    return member


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


def _fail(message: str) -> NoReturn:
    typer.secho(f"ps-service: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(2)
