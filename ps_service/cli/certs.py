"""`ps-service certs`: a small authority of one's own, and certificates of owners and trainers that it has signed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ps_service.cli.ending import fail

AUTHORITY: Final = "ca.pem"

_EXTRA: Final = "needs the package trustme: pip install 'torch-parameter-server[certs]'"


def certs(
    folder: Annotated[Path, typer.Argument(help="Where the files are written.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Host at which owners are reached, for their certificate (several times).")
    ] = None,
    trainer: Annotated[list[str] | None, typer.Option(help="Name of a trainer's certificate (several times).")] = None,
    once: Annotated[bool, typer.Option("--once", help="Make nothing if all of the files are there already.")] = False,
) -> None:
    """Makes a small authority, and certificates for owners and trainers, for a cluster of one's own.

        ps-service certs certs --host ps0 --host 10.0.0.7
        ps-service serve --tls-cert certs/owner.pem --tls-key certs/owner.key --tls-client-ca certs/ca.pem

    Trainers have `tc.connect(..., tls=tc.TLS(ca="certs/ca.pem", cert="certs/trainer.pem", key="certs/trainer.key"))`,
    or the variables PS_TLS_CA, PS_TLS_CERT and PS_TLS_KEY, which the commands of ps-service read, too. The key of the
    authority is not kept: to add a certificate, make all of them anew.
    """
    trainers = trainer or ["trainer"]
    if once and all((folder / name).exists() for name in _names(trainers)):
        return
    try:
        made = make(folder, host or ["localhost", "127.0.0.1", "::1"], trainers)
    except (OSError, CertsError) as error:
        fail(str(error))
    for path in made:
        print(path)


class CertsError(Exception):
    """The certificates could not be made; the message says why."""


def make(folder: Path, hosts: Sequence[str], trainers: Sequence[str]) -> list[Path]:
    """Writes `ca.pem`, `owner.pem` and `owner.key` for an owner at these hosts, and the same of each trainer by its
    name, into a folder. Returns the files. The key of the authority is kept nowhere, so nobody can sign others later.

    Raises `CertsError` if trustme is not installed, or one of the files is there.
    """
    authority = _trustme().CA(organization_name="torch-parameter-server", key_type=_trustme().KeyType.ECDSA)
    contents: dict[str, list[Any]] = {AUTHORITY: [authority.cert_pem]}
    for name, names in {"owner": [*hosts], **{each: [each] for each in trainers}}.items():
        issued = authority.issue_cert(
            *names, common_name=names[0] if names else name, key_type=_trustme().KeyType.ECDSA
        )
        contents[f"{name}.pem"] = issued.cert_chain_pems
        contents[f"{name}.key"] = [issued.private_key_pem]
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / name, b"".join(each.bytes() for each in blobs)) for name, blobs in contents.items()]


def _names(trainers: Sequence[str]) -> list[str]:
    return [AUTHORITY, *(f"{name}.{kind}" for name in ("owner", *trainers) for kind in ("pem", "key"))]


def _write(path: Path, content: bytes) -> Path:
    """Writes a new file; only its owner may read a key."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if path.suffix == ".key" else 0o644)
    except FileExistsError:
        raise CertsError(f"{path} is there already: choose another folder, or remove it") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return path


def _trustme() -> Any:
    try:
        return import_module("trustme")
    except ImportError:
        raise CertsError(f"ps-service certs {_EXTRA}") from None
