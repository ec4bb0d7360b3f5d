"""The command line: `ps-service`."""

from ps_service.cli.entry import main

__all__ = ["main"]
