"""The commands of `ps-service ray`: up, status and down."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import import_module
from typing import Annotated, Any

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ps_service.cli.ending import asking, fail
from ps_service.cli.options import tell

ray_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Owners that Ray places and restarts.")

_Name = Annotated[str, typer.Option(help="Name of the cluster, as in tc.connect(directory='ray:ps').")]


@ray_app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": False})
def up(
    context: typer.Context,
    name: _Name = "ps",
    owners: Annotated[int, typer.Option(min=1, help="How many owners: ps0, ps1 and so on.")] = 1,
    imports: Annotated[
        list[str] | None, typer.Option("--import", help="Modules of hosted classes, as for ps-service serve.")
    ] = None,
    data_dir: Annotated[
        str, typer.Option(help="Folder that all nodes share; each owner has one of its name in it.")
    ] = "",
    cpus: Annotated[float, typer.Option(min=0, help="Cores that Ray reserves for each owner.")] = 1.0,
    memory: Annotated[str, typer.Option(help="Memory that Ray reserves for each owner, such as 16GiB.")] = "",
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE: a label of the nodes that may be used.")] = None,
    resource: Annotated[
        list[str] | None, typer.Option(help="KEY=AMOUNT: a custom resource that Ray reserves for each owner.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Never two owners on one node.")] = False,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until all owners serve.")] = 120.0,
) -> None:
    """Starts owners on the nodes of a Ray cluster, and returns when they serve. They stay until `ps-service ray down`.

    Ray restarts them elsewhere when a node is lost or drained, with what they have in their data directory. What
    follows `--` is passed on to `ps-service serve`:

        ps-service ray up --owners 4 --import my_models --data-dir /shared/ps -- --durability always
    """
    amounts = {key: _number(key, amount) for key, amount in _pairs("--resource", resource).items()}
    needs = {"cpus": cpus, "memory": _bytes(memory), "labels": _pairs("--label", label), "resources": amounts}
    with asking():
        cluster = _ray().start(
            name, owners, imports or (), data_dir, **needs, strict=strict, flags=context.args, wait=wait
        )
        _show(cluster.status())


@ray_app.command()
def status(
    name: _Name = "ps",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Shows the owners of a cluster on Ray: where each is, and how often it was started.

    The exit code is 1 if one of them does not serve, and 2 if there is no such cluster.
    """
    with asking():
        states = _ray().Cluster(name).status()
    if as_json:
        print(json.dumps([asdict(each) for each in states], indent=2))
    else:
        _show(states)
    if any(each.state != "serving" for each in states):
        raise typer.Exit(1)


@ray_app.command()
def down(
    name: _Name = "ps",
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to wait until the owners have ended.")] = None,
) -> None:
    """Drains the owners of a cluster on Ray, all at once, and ends their supervisors."""
    with asking():
        _ray().Cluster(name).down(timeout)
    print(f"the cluster {name!r} is down")


for _each in ray_app.registered_commands:
    tell(_each)


def _ray() -> Any:
    """What starts owners on Ray, which is imported now."""
    try:
        return import_module("ps_service.ray.cluster")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        fail("this needs the package ray: pip install 'torch-parameter-server[ray]'")


def _show(states: list[Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("owner", "state", "address", "node", "pid"):
        table.add_column(column)
    for column in ("restarts", "moves"):
        table.add_column(column, justify="right")
    for each in states:
        table.add_row(
            *map(Text, (each.name, each.state, each.address, each.node[:8])),
            str(each.pid or ""),
            *(str(each.restarts), str(each.moves)),
        )
    Console().print(table)
    for each in states:
        if each.error:
            print(f"{each.name}: {each.error}")


def _pairs(flag: str, given: list[str] | None) -> dict[str, str]:
    pairs = dict(each.partition("=")[::2] for each in given or ())
    if not all(key and value for key, value in pairs.items()):
        fail(f"{flag} takes KEY=VALUE, as in {flag} role=owner")
    return pairs


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        fail(f"--resource {key}= takes a number, not {text!r}")


def _bytes(text: str) -> int:
    try:
        return int(TypeAdapter(ByteSize).validate_python(text or "0"))
    except ValidationError:
        fail(f"--memory takes a size such as 16GiB, not {text!r}")
