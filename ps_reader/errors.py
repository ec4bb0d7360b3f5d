"""Errors of readers."""

from __future__ import annotations


class ExportError(Exception):
    """A folder has no export that can be read, or not the version that is asked for. The message says why."""
