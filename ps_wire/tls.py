"""The certificates with which trainers and owners prove to each other who they are, read again when their files change.

Both take PEM files. The gRPC server and channels, the direct port and the page use the same ones.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ps_wire.errors import InvalidArgumentError

_PATHS = str | Path

MinVersion = Literal["1.2", "1.3"]


@dataclass(frozen=True, slots=True)
class TLS:
    """How a trainer reaches owners over TLS. All files are in PEM, and read at each connection.

    Args:
        ca: Certificates of the authorities one of which has signed the certificate of each owner. None takes those that
            the system trusts.
        cert: The certificate of the trainer, if owners ask for one (`--tls-client-ca`), with its chain.
        key: Its private key.
        server_name: The name that the certificates of all owners have; empty: that of each owner's address.

    Raises:
        InvalidArgumentError: One of `cert` and `key` is given without the other.
    """

    ca: _PATHS | None = None
    cert: _PATHS | None = None
    key: _PATHS | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InvalidArgumentError("give cert and key together: a certificate is used with its private key")

    @classmethod
    def of_variables(cls) -> TLS | None:
        """What the variables `PS_TLS_CA`, `PS_TLS_CERT`, `PS_TLS_KEY` and `PS_TLS_SERVER_NAME` say; None if none of
        them is set."""
        ca, cert, key, name = (os.environ.get(f"PS_TLS_{each}") for each in ("CA", "CERT", "KEY", "SERVER_NAME"))
        return cls(ca or None, cert or None, key or None, name or "") if ca or cert or key or name else None

    def under(self, host: str) -> TLS:
        """The same for an owner whose address was found under a name of a host, which its certificate has."""
        return replace(self, server_name=host) if host and not self.server_name else self

    def of_member(self) -> ServerTLS:
        """How a member of a group that has these serves: with its certificate, for those of the same authorities.
        Raises `InvalidArgumentError` if there is no certificate."""
        if self.cert is None or self.key is None:
            raise InvalidArgumentError("a member of a group serves, too: give cert and key, with the name of its host")
        return ServerTLS(Path(self.cert), Path(self.key), None if self.ca is None else Path(self.ca))

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """The authorities, the private key and the certificate. Raises `InvalidArgumentError` if one cannot be read."""
        return _read(self.ca), _read(self.key), _read(self.cert)

    def context(self) -> ssl.SSLContext:
        """For sockets. Raises `InvalidArgumentError` if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self.ca is None:
            context.load_default_certs()
        else:
            _load_authorities(context, self.ca)
        if self.cert is not None and self.key is not None:
            _load_own(context, self.cert, self.key)
        return context


@dataclass(frozen=True, slots=True)
class ServerTLS:
    """How an owner serves over TLS. All files are in PEM.

    Args:
        cert: The certificate of the owner, with its chain. It names the hosts at which the owner is reached.
        key: Its private key.
        client_ca: Certificates of the authorities one of which must have signed that of each trainer; None asks for
            none.
        min_version: The oldest version of TLS that sockets speak. What gRPC speaks is set for the whole process.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    min_version: MinVersion = "1.3"

    def read(self) -> Certificates:
        """What the files have now. Raises `InvalidArgumentError` if one cannot be read."""
        cert, key = _read(self.cert), _read(self.key)
        assert cert is not None and key is not None
        return Certificates(cert, key, _read(self.client_ca))

    def context(self) -> ssl.SSLContext:
        """For sockets. Raises `InvalidArgumentError` if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3 if self.min_version == "1.3" else ssl.TLSVersion.TLSv1_2
        _load_own(context, self.cert, self.key)
        if self.client_ca is not None:
            _load_authorities(context, self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes when a file does. Raises `InvalidArgumentError` if one is not there."""
        found = []
        for each in filter(None, (self.cert, self.key, self.client_ca)):
            try:
                status = each.stat()
            except OSError as error:
                raise _unreadable(each, error) from None
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Certificates:
    """What the files of a `ServerTLS` have: its certificate, its private key, and the authorities of trainers."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


def _read(path: _PATHS | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: _PATHS, error: OSError) -> InvalidArgumentError:
    return InvalidArgumentError(f"the file {path} of TLS cannot be read: {error.strerror}")


def _load_authorities(context: ssl.SSLContext, path: _PATHS) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"{path} has no certificates of authorities in PEM: {error}") from None


def _load_own(context: ssl.SSLContext, cert: _PATHS, key: _PATHS) -> None:
    try:
        # An encrypted key would ask for its password in the terminal.
        context.load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"{cert} and {key} are no certificate in PEM and its private key without a password: {error}"
        ) from None
