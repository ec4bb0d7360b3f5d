"""A small test authority, and files with its certificates."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import trustme

from ps_wire.tls import TLS, ServerTLS


class Authority:
    """Signs certificates, and writes them to files in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self._folder = folder
        self._name = name
        self.ca = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    def issue(self, name: str, *hosts: str, **dates: datetime) -> tuple[Path, Path]:
        """The files of a certificate for some hosts, and of its key. Those of the same name are replaced. `not_before`
        and `not_after` are its dates."""
        issued = self._authority.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")), key_type=trustme.KeyType.ECDSA, **dates
        )
        cert, key = self._folder / f"{self._name}-{name}.pem", self.key_of(name)
        # First the chain, so that both are never of two certificates for long.
        cert.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return cert, key

    def key_of(self, name: str) -> Path:
        """The file of the key of a certificate."""
        return self._folder / f"{self._name}-{name}.key"

    def server(self, *hosts: str, asks: bool = False) -> ServerTLS:
        """An owner's; one that `asks` wants certificates of this authority."""
        return ServerTLS(*self.issue("owner", *hosts), self.ca if asks else None)

    def trainer(self, name: str = "trainer") -> TLS:
        """A trainer's, with a certificate of its own."""
        return TLS(self.ca, *self.issue(name, f"{name}.example"))
