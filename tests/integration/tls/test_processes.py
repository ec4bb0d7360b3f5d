"""Owners as processes, in a group, over mutual TLS: with the certificates that `ps-service certs` makes."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import optim
from typer.testing import CliRunner

import trainer_client as tc
from ps_service.access.token_file import TokenFile
from ps_service.cli import entry, old_tls, probe
from ps_service.cli.commands import app
from tests.conftest import StartProcess
from tests.forking.process import Forking
from tests.integration.tls.authority import Authority
from trainer_client import rpc

COMMANDS = [
    *((["status"], 0), (["status", "--group"], 0), (["sessions"], 0), (["evict", "--older-than", "60"], 0)),
    *((["checkpoint"], 1), (["rebalance"], 0), (["drain"], 0)),
]
"""Commands that ask an owner, and their exit codes for one without a data directory."""


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    ran = CliRunner().invoke(app, ["certs", str(folder), "--trainer", "alice"], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return folder


def flags(certs: Path) -> list[str]:
    own = ["--tls-cert", str(certs / "owner.pem"), "--tls-key", str(certs / "owner.key")]
    return [*own, "--tls-client-ca", str(certs / "ca.pem")]


def test_certificates_are_made_once_and_keys_are_private(certs: Path) -> None:
    assert sorted(each.name for each in certs.iterdir()) == [
        "alice.key",
        "alice.pem",
        "ca.pem",
        "owner.key",
        "owner.pem",
    ]
    for each in certs.glob("*.key"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
    before = (certs / "ca.pem").read_bytes()
    again = CliRunner().invoke(app, ["certs", str(certs)])
    assert again.exit_code != 0 and "is there already" in again.output
    assert (certs / "ca.pem").read_bytes() == before


async def test_a_group_calls_within_itself_and_takes_no_stranger(
    start_process: StartProcess, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = tc.TLS(certs / "ca.pem", certs / "alice.pem", certs / "alice.key")
    first = await start_process("--name", "ps0", "--directory", "self", *flags(certs))
    second = await start_process("--name", "ps1", "--directory", first.address, *flags(certs))
    async with tc.connect("ps0", "ps1", directory=first.address, tls=tls) as ps:
        inner = await ps.module("torch.nn.Linear", 4, 4, owner="ps1", seed=1)
        outer = await ps.module("tests.hosted_models.Delegating", owner="ps0")
        opt = await ps.optimizer(optim.SGD, inner.parameters(), lr=0.1)

        async with ps.context() as ctx:
            await ctx.backward((await outer(torch.ones(2, 4), inner)).sum())
            await opt.step(ctx)
        assert (await ps.status("ps1")).optimizers[0].version == 1
    with pytest.raises(tc.errors.UnavailableError):
        await tc.connect(second.address, connect_timeout=0.0)
    with pytest.raises(tc.errors.UnavailableError):
        probe.status(first.address)
    for name, file in {"CA": "ca.pem", "CERT": "alice.pem", "KEY": "alice.key"}.items():
        monkeypatch.setenv(f"PS_TLS_{name}", str(certs / file))
    async with tc.connect(second.address) as ps:
        assert ps.owners == ["ps1"]


async def test_commands_reach_owners_with_the_same_certificates(
    start_process: StartProcess, certs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await start_process("--name", "ps0", "--directory", "self", *flags(certs))
    own = {"--tls-ca": "ca.pem", "--tls-cert": "alice.pem", "--tls-key": "alice.key"}
    given = [part for flag, file in own.items() for part in (flag, str(certs / file))]

    async def run(*options: str) -> tuple[int, str]:
        ran = await asyncio.to_thread(CliRunner().invoke, app, [*options])
        return ran.exit_code, ran.output

    code, out = await run("status", owner.address, "--timeout", "5")
    assert code == 2 and "with TLS on one side only" in " ".join(out.split())
    code, out = await run("sessions", owner.address, *given[:4])
    assert code == 2 and "give cert and key together" in out
    for options, code in COMMANDS:
        assert (await run(*options, owner.address, *given))[0] == code, options
    for flag, file in own.items():
        monkeypatch.setenv(f"PS_{flag[2:].replace('-', '_').upper()}", str(certs / file))
    code, out = await run("status", owner.address, "--json")
    assert code == 0 and json.loads(out)["owner"] == "ps0"


def test_programs_call_each_other_over_tls_with_tokens(forking: Forking, tmp_path: Path) -> None:
    Authority(tmp_path).issue("owner")
    for rank in range(2):
        Path(tmp_path, f"token{rank}").write_text(TokenFile(tmp_path / "tokens").add(f"worker{rank}", ["owner"]))
    with forking.start("tests.integration.tls.members", "2", str(tmp_path)) as group:
        output = group.communicate(timeout=60)
        assert group.returncode == 0, output
    assert sorted(output.splitlines()) == [
        f"{rank} [2.0, 2.0] [3.0, 3.0] UnavailableError UnavailableError UnauthenticatedError" for rank in range(2)
    ]


def test_a_program_without_a_certificate_begins_no_group_over_tls(tmp_path: Path) -> None:
    with pytest.raises(tc.errors.InvalidArgumentError, match="serves, too: give cert and key"):
        rpc.init_rpc("worker0", directory="self", tls=tc.TLS(Authority(tmp_path).ca))
    with pytest.raises(RuntimeError, match="in no group"):
        rpc.get_worker_info()


async def test_tls_1_2_is_not_spoken(certs: Path) -> None:
    serve = ("-m", "ps_service", "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--no-compile-tables")
    # Not forked: gRPC decides when it is imported.
    process = await asyncio.create_subprocess_exec(
        sys.executable, *serve, *flags(certs), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().split()[-1]
        page = (await process.stdout.readline()).decode().split()[5].removeprefix("https://").removesuffix("/")
        tls = tc.TLS(certs / "ca.pem", certs / "alice.pem", certs / "alice.key")
        async with tc.connect(address, tls=tls, shared_memory=False) as ps:
            await ps.status()
        for each in (address, page):
            assert await asyncio.to_thread(versions, each, tls) == {"TLSv1.3"}, each
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.parametrize(
    ("arguments", "variable", "is_refused"),
    [
        (["serve"], "", True),
        (["serve", "--tls-min-version", "1.2"], "", False),
        (["serve", "--tls-min-version=1.2"], "1.3", False),
        (["serve", "--tls-min-version", "1.3"], "1.2", True),
        (["serve"], "1.2", False),
        (["status"], "", False),
    ],
)
def test_it_is_by_choice(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], variable: str, is_refused: bool
) -> None:
    monkeypatch.setattr(sys, "argv", ["ps-service", *arguments, "--help"])
    monkeypatch.setenv("PS_TLS_MIN_VERSION", variable)
    monkeypatch.setenv("GRPC_SSL_CIPHER_SUITES", "")  # so that what follows is undone
    monkeypatch.delenv("GRPC_SSL_CIPHER_SUITES")
    with pytest.raises(SystemExit):
        entry.main()
    assert old_tls.is_refused() is is_refused


def test_a_file_is_too_late_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "owner.toml").write_text('tls_min_version = "1.2"')
    monkeypatch.setenv("GRPC_SSL_CIPHER_SUITES", "")
    monkeypatch.delenv("GRPC_SSL_CIPHER_SUITES")
    old_tls.refuse()
    ran = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "owner.toml")])
    assert ran.exit_code == 2 and "a file is read too late for tls_min_version" in ran.output


def versions(address: str, tls: tc.TLS) -> set[str]:
    """The versions of TLS that are spoken at an address."""
    host, _, port = address.rpartition(":")
    found = set()
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = tls.context()
        context.minimum_version = version
        context.maximum_version = version
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            suppress(OSError),
            socket.create_connection((host, int(port))) as raw,
            context.wrap_socket(raw, server_hostname=host) as sock,
        ):
            found.add(str(sock.version()))
    return found
