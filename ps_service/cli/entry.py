"""The entry point of `ps-service`."""

from __future__ import annotations

import sys
from importlib import import_module

from ps_service.cli.inspecting import alone


def main() -> None:
    """Runs a command; `inspect` without the modules of the others: they need torch, whose import takes seconds."""
    if sys.argv[1:2] == ["inspect"]:
        alone(sys.argv[2:], prog_name="ps-service inspect")
    else:
        import_module("ps_service.cli.commands").main()
