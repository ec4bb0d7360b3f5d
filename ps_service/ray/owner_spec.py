"""What an owner on Ray is started with."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

WAIT_SECONDS: Final = 120.0
"""Seconds that an owner waits for its data directory: as long as the one before may take to drain and to write its
checkpoint."""


@dataclass(frozen=True)
class OwnerSpec:
    """One owner of a cluster.

    Attributes:
        cluster: The name of the cluster.
        name: The name of the owner.
        names: Those of all owners of the cluster.
        imports: Modules of hosted classes.
        data_dir: Its folder on a file system that all nodes have, or empty.
        flags: Further flags of `ps-service serve`.
    """

    cluster: str
    name: str
    names: tuple[str, ...]
    imports: tuple[str, ...] = ()
    data_dir: str = ""
    flags: tuple[str, ...] = ()

    def command(self, listen: str) -> list[str]:
        """The command line of the owner, which drains when its standard input ends. Nodes of a Ray cluster trust each
        other, and their network: what Ray itself sends there is not encrypted, either."""
        command = [
            *(sys.executable, "-m", "ps_service", "serve", "--until-eof", "--insecure"),
            *("--name", self.name, "--listen", listen, "--directory", "stdin"),
        ]
        if self.imports:
            command += ["--import", ",".join(self.imports)]
        if self.data_dir:
            command += ["--data-dir", self.data_dir, "--wait-for-data-dir", f"{WAIT_SECONDS:g}"]
        return [*command, *self.flags]
