"""The command line: `ps-service`."""

from ps_service.cli.commands import main

__all__ = ["main"]
