"""The command line, as real processes: what it teaches, what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import trainer_client as tc
from ps_service.cli.commands import app
from ps_service.config import OwnerConfig
from ps_wire.release import RELEASE
from tests.forking.process import Forking
from tests.owner_processes import COMMAND, ENVIRONMENT, ROOT, StartOwner, forked_owners

OPTIONS = {(field.alias or name).replace("_", "-") for name, field in OwnerConfig.model_fields.items()} | {"config"}


# Commands that end at once


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """A port with a server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def ended(taken: int, forking: Forking) -> dict[str, subprocess.CompletedProcess[str]]:
    """What became of several commands, run two at a time. The first is the installed script; the others are forked."""
    serve = ("serve", "--listen", "127.0.0.1:0")
    commands = {
        "help": ("--help",),
        "port in use": ("serve", "--listen", f"127.0.0.1:{taken}"),
        "unknown module": (*serve, "--import", "no_such_module_anywhere"),
        "nothing hosted": (*serve, "--import", "tests.hosted_models,json"),
        "open to all": ("serve", "--listen", "0.0.0.0:0"),
        "no owner": ("status", "127.0.0.1:1", "--timeout", "20"),
    }

    environment = {**ENVIRONMENT, **forking.variables}

    def run(arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        command = [COMMAND] if arguments == ("--help",) else [forking.python, "-m", "ps_service"]
        return subprocess.run(
            [*command, *arguments], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60, check=False
        )

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(commands, pool.map(run, commands.values()), strict=True))


def test_help_teaches_how_to_begin(ended: dict[str, Any]) -> None:
    assert ended["help"].returncode == 0
    for line in (
        "ps-service serve --name ps0 --listen 127.0.0.1:50051 --import my_models",
        "ps-service status 127.0.0.1:50051",
        'async with trainer_client.connect("127.0.0.1:50051") as ps:',
        'net = await ps.module("my_models.Net", name="net")',
    ):
        assert line in ended["help"].stdout


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, tc.__version__) == (0, RELEASE)
    assert re.fullmatch(rf"ps-service {re.escape(RELEASE)} \(Python 3\.\S+, torch \S+\)\n", result.stdout)


def test_help_tells_variables_and_defaults() -> None:
    serve, status = (
        CliRunner(env={**ENVIRONMENT, "COLUMNS": "200"}).invoke(app, [name, "--help"]).stdout
        for name in ("serve", "status")
    )
    for text in ("(PS_LEASE_SECONDS; default: 30.0)", "(PS_IMPORT; default: none)", "(PS_SHARED_MEMORY; default: on)"):
        assert text in " ".join(serve.replace("│", " ").split())
    assert "[env var: PS_ADDRESS; default: 127.0.0.1:50051]" in " ".join(status.replace("│", " ").split())


@pytest.mark.parametrize("columns", ["80", "60"])
def test_no_help_cuts_names_or_sentences(columns: str) -> None:
    def told(*command: str) -> str:
        result = CliRunner(env={**ENVIRONMENT, "COLUMNS": columns}).invoke(app, [*command, "--help"])
        return " ".join(result.stdout.split())

    all_commands = told()
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        assert command.short_help in all_commands
        text = told(name)
        for part, own in getattr(command, "commands", {"": command}).items():
            assert not part or own.short_help in text
            of_part = told(name, part) if part else text
            for option in own.params:
                if getattr(option, "hidden", False):  # those of serve, which `run` hands on
                    continue
                for each in [*option.opts, *option.secondary_opts, *re.findall("PS_[A-Z_]+", option.help or "")]:
                    assert each in of_part


def test_help_of_serve_explains_every_option() -> None:
    result = CliRunner(env=ENVIRONMENT).invoke(app, ["serve", "--help"])
    assert result.exit_code == 0
    assert set(re.findall(r"--([\w-]+) ", result.stdout)) >= OPTIONS
    serve = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    assert {option.opts[0].removeprefix("--") for option in serve.params} == OPTIONS
    for words in ("SIGTERM", "PS_…", "TOML", "flags win over the environment", "ps0 is serving on 127.0.0.1:50051"):
        assert words in result.stdout


def test_the_help_of_status_describes_its_output() -> None:
    result = CliRunner(env=ENVIRONMENT).invoke(app, ["status", "--help"])
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert "trainers, optimizers, objects, tables, passes, memory, operations, and what has happened lately" in text
    assert all(option in text for option in ("--json", "--watch", "--group", "--most", "--events"))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("port in use", "cannot listen on 127.0.0.1:{port}: is another owner, or another program, there?"),
        ("unknown module", "--import no_such_module_anywhere: No module named 'no_such_module_anywhere'"),
        ("nothing hosted", "module json has nothing that is decorated with @hosted or @remote"),
        (
            "open to all",
            "0.0.0.0:0 can be reached from other machines and traffic is not encrypted; serve over TLS with "
            "--tls-cert and --tls-key, listen on 127.0.0.1, or pass --insecure if the network is trusted",
        ),
        (
            "no owner",
            "no owner answers at 127.0.0.1:1: connection refused; nothing listens there",
        ),
    ],
)
def test_errors_of_the_command_line_are_one_line(ended: dict[str, Any], taken: int, case: str, message: str) -> None:
    assert ended[case].returncode == 2
    assert ended[case].stdout == ""
    line = ended[case].stderr
    assert line.startswith(f"ps-service: {message.format(port=taken)}")
    assert line.index("\n") == len(line) - 1


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--listen", "nowhere"], ["listen: Value error, 'nowhere' is not HOST:PORT"]),
        (["--name", "a b", "--threads", "-1"], ["name: Value error, an owner's name", "threads: Input should be"]),
        (["--log-level", "loud"], ["log_level: Input should be 'debug', 'info', 'warning' or 'error'"]),
        (["--device", "gpu"], ["device: Value error, 'gpu' is not a device"]),
        (["--config", "nothing.toml"], ["there is no configuration file nothing.toml"]),
        (["--config", "unknown.toml"], ["colour: Extra inputs are not permitted"]),
        (["--config", "broken.toml"], ["the configuration cannot be read:"]),
        (["--config", "latin1.toml"], ["the configuration cannot be read:"]),
    ],
    ids=lambda each: " ".join(each) if each and each[0].startswith("--") else "",
)
def test_a_configuration_that_does_not_fit_is_explained(
    arguments: list[str], messages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("unknown.toml").write_text('colour = "red"')
    Path("broken.toml").write_text("colour: red")
    Path("latin1.toml").write_bytes(b'name = "\xe9"')
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("ps-service: ")
    assert all(message in result.stderr for message in messages)
    assert "Traceback" not in result.output


def test_an_option_that_does_not_exist_is_refused() -> None:
    result = CliRunner().invoke(app, ["serve", "--colour", "red"])
    assert result.exit_code == 2
    assert "No such option: --colour" in result.output


# Owners that serve


@pytest.fixture
async def start(forking: Forking) -> AsyncIterator[StartOwner]:
    async with forked_owners(forking) as start:
        yield start


async def run(forking: Forking, *arguments: str) -> tuple[int | None, str, str]:
    """Runs a command; returns its exit code, and what it printed on standard output and on standard error."""
    variables = {**ENVIRONMENT, "COLUMNS": "160"}
    async with aclosing(await forking.begin("ps_service", *arguments, errors=True, variables=variables)) as process:
        out, error = await process.communicate()
        return process.returncode, out.decode(), error.decode()


async def status(forking: Forking, address: str, *flags: str) -> str:
    code, out, error = await run(forking, "status", address, *flags)
    assert (code, error) == (0, "")
    return out


async def test_status_shows_the_work_of_an_owner(start: StartOwner, forking: Forking) -> None:
    owner = await start("--name", "ps7", "--import", "tests.hosted_models")
    assert owner.first == f"ps7 is serving on {owner.address}\n"
    async with tc.connect(owner.address) as ps:
        net = await ps.module("tests.hosted_models.Affine", 100, 20, name="net")
        opt = await ps.optimizer(torch.optim.SGD, net.parameters(), lr=0.1)
        async with ps.context() as ctx:
            await ctx.backward((await net(torch.ones(1, 100))).sum())
            await opt.step(ctx)
            tables, text = await asyncio.gather(
                status(forking, owner.address), status(forking, owner.address, "--json")
            )
    lines = [" ".join(line.replace("│", " ").split()) for line in tables.splitlines()]
    assert lines[0].startswith("ps7 is serving, up 0:00:")
    for expected in (
        "objects 2 (module: 1, optimizer: 1)",
        "parameters 2,020, 7.9 KiB with buffers",
        "sessions 1 (1 connected)",
        "contexts open 1",
        "net tests.hosted_models.Affine 2,020 7.9 KiB 1",
    ):
        assert expected in lines
    assert any(line.startswith("net.optimizer SGD 0.1 1 ") for line in lines)
    assert any(line.startswith("calls per second ") for line in lines)
    assert any(line.startswith("step 1 0 ") for line in lines)
    told = json.loads(text)
    assert (told["owner"], told["serving"], told["parameters"], told["bytes"]) == ("ps7", True, 2020, 8080)
    assert (told["sessions"], told["contexts"]) == (1, 1)
    assert told["objects"][0]["name"] == "net"
    assert told["optimizers"][0]["version"] == 1
    assert told["calls_per_second"] >= 0.0
    owner.process.send_signal(signal.SIGTERM)
    out, _ = await owner.ended()
    assert owner.process.returncode == 0
    assert out == "", "one line on standard output, and no other"


async def test_ctrl_c_ends_an_owner_in_good_order_and_its_log_is_json(start: StartOwner, tmp_path: Path) -> None:
    (tmp_path / "my_models.py").write_text(
        "from ps_service import hosted\n\n@hosted\nclass Mine:\n    def __init__(self):\n        print('made')\n"
    )
    (tmp_path / "owner.toml").write_text('name = "from_file"\nimport = "my_models"\nlog_format = "text"\n')
    owner = await start("--config", "owner.toml", "--log-format", "json", cwd=tmp_path, PS_LOG_LEVEL="debug")
    assert owner.first.startswith("from_file is serving on 127.0.0.1:")
    async with tc.connect(owner.address) as ps:
        assert (await ps.create("my_models.Mine")).class_name == "my_models.Mine"
    owner.process.send_signal(signal.SIGINT)
    out, lines = await owner.ended()
    assert owner.process.returncode == 0
    assert out == "made\n"
    records = [json.loads(line) for line in lines]
    assert {"event", "level", "logger", "timestamp"} <= records[0].keys()
    told = [(record["kind"], record["level"]) for record in records if record["logger"] == "ps_service.events"]
    assert told == [(kind, "info") for kind in ("started", "joined", "left", "draining", "drained")]
    assert [record["event"] for record in records].count(f"from_file is serving on {owner.address}") == 1


async def test_sessions_and_contexts_are_listed_and_ended(start: StartOwner, forking: Forking) -> None:
    owner = await start("--import", "tests.hosted_models", "--log-format", "text")
    async with tc.connect(owner.address) as ps, tc.connect(owner.address) as other:
        net = await ps.module("tests.hosted_models.Affine", 3, 2, name="net")
        id, others = ps.trainer.hex()[:8], other.trainer.hex()[:8]
        async with ps.context() as ctx:
            loss = (await net(torch.ones(1, 3))).sum()
            tables, text = await asyncio.gather(
                run(forking, "sessions", owner.address), run(forking, "sessions", owner.address, "--json")
            )
            assert await run(forking, "evict", owner.address, "--context", str(ctx.id)) == (
                0,
                f"context {ctx.id} was ended\n",
                "",
            )
            with pytest.raises(tc.errors.ContextLostError, match="its operator ended it"):
                await ctx.backward(loss)
        gate = await ps.create("tests.hosted_models.Gate", name="gate")
        waiting = gate.wait()
        unknown, none = await asyncio.gather(
            run(forking, "evict", owner.address, "--session", f"{int(others, 16) ^ 1:08x}"),
            run(forking, "evict", owner.address, "--older-than", "1000"),
        )
        ended = await run(forking, "evict", owner.address, "--session", id)
        with pytest.raises(tc.errors.SessionLostError, match="its operator ended it"):
            await waiting
        assert ended == (0, f"session {id} was ended\n", "")
        assert (unknown[0], unknown[1]) == (1, "")
        assert unknown[2].startswith("ps-service: there is no session ")
        assert none == (0, "no context had been unused for 1000 s\n", "")
        # The program goes on.
        async with ps.context() as ctx:
            await ctx.backward((await (await ps.attach("net"))(torch.ones(1, 3))).sum())
        await (await other.attach("gate")).open()
    lines = [" ".join(line.split()) for line in tables[1].splitlines()]
    assert (tables[0], tables[2]) == (0, "")
    assert lines[0] == "ps0: 2 sessions, 1 open context"
    assert any(line.startswith(f"{id} ") and " memory " in line for line in lines)
    assert any(line.startswith(f"{id}/1 {id} ") for line in lines)
    told = json.loads(text[1])
    assert [each["id"] for each in told["sessions"]] == [id, others]
    assert [(each["contexts"], each["references"]) for each in told["sessions"]] == [(1, 1), (0, 0)]
    assert [each["id"] for each in told["contexts"]] == [f"{id}/1"]
    assert ps.trainer.hex() not in tables[1] + text[1]
    owner.process.send_signal(signal.SIGTERM)
    _, log = await owner.ended()
    assert owner.process.returncode == 0
    for said in (f"session {id} was ended by the operator", f"context {id}/1 was ended by the operator"):
        assert any(said in line for line in log)


@pytest.mark.parametrize(
    "options", [[], ["--session", "ab", "--context", "ab/1"], ["--context", "ab/1", "--older-than", "5"]]
)
def test_evict_wants_to_know_one_thing(options: list[str]) -> None:
    result = CliRunner().invoke(app, ["evict", "127.0.0.1:1", *options])
    assert result.exit_code == 2
    assert result.stderr == "ps-service: give one of --session, --context and --older-than\n"


@pytest.mark.parametrize("command", [["sessions"], ["evict", "--older-than", "5"]])
def test_administration_of_an_owner_that_is_not_there_is_refused(command: list[str]) -> None:
    result = CliRunner().invoke(app, [command[0], "127.0.0.1:1", "--timeout", "20", *command[1:]])
    assert result.exit_code == 2
    assert result.stderr.startswith("ps-service: no owner answers at 127.0.0.1:1: connection refused; ")
