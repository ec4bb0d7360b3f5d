"""The entry point of `ps-service`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING

from ps_service.cli import old_tls
from ps_service.cli.inspecting import alone

if TYPE_CHECKING:
    from collections.abc import Sequence


def main() -> None:
    """Runs a command; `inspect` without the modules of the others, which need gRPC. Ctrl-C is told by the status alone,
    also while they are imported."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    command, *arguments = sys.argv[1:] or [""]
    if command == "inspect":
        alone(arguments, prog_name="ps-service inspect")
        return
    if command == "serve" and _min_version(arguments) != "1.2":
        old_tls.refuse()
    import_module("ps_service.cli.commands").main()


def _min_version(arguments: Sequence[str]) -> str:
    flag = "--tls-min-version"
    given = [value for name, value in pairwise(arguments) if name == flag]
    given += [each.partition("=")[2] for each in arguments if each.startswith(f"{flag}=")]
    return given[-1] if given else os.environ.get("PS_TLS_MIN_VERSION", "")
