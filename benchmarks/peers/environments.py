"""The environments of the peers, made at the first run in a folder that git ignores."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.process import ROOT

FOLDER: Final = ROOT / ".venv-peers"
REQUIREMENTS: Final = Path(__file__).with_name("requirements")
INSTALL_SECONDS: Final = 900.0


class NotInstalled(RuntimeError):
    """A peer cannot be installed; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a peer is installed.

    Attributes:
        peer: Its name.
        python: The interpreter that finds its library.
        version: Its library and version, the first line of its requirements; empty if it has none.
    """

    peer: str
    python: str
    version: str


def prepare(peer: str, say: Callable[[str], None], shared: str = "") -> Environment:
    """The environment of a peer, or the one of another that it has, installed if it is not there. A peer without
    requirements runs in that of the project.

    Raises:
        NotInstalled: Its packages cannot be installed.
    """
    name = shared or peer
    requirements = REQUIREMENTS / f"{name}.txt"
    if not requirements.exists():
        return Environment(peer, sys.executable, "")
    pinned = requirements.read_text()
    folder = FOLDER / name
    stamp = folder / ".ready"
    python = folder / "bin" / "python"
    digest = hashlib.sha256(pinned.encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        say(f"installing {name} into {folder.relative_to(ROOT)} (a few minutes the first time)")
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)])
        # Written last, so that an installation that failed half way is tried again.
        stamp.write_text(digest)
    return Environment(peer, str(python), pinned.splitlines()[0])


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"not installed within {INSTALL_SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.startswith("ERROR")] or error.stderr.splitlines()
        raise NotInstalled(said[0] if said else f"pip ended with code {error.returncode}") from None
