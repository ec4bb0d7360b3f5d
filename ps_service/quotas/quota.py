"""The quotas that there are, and the file that sets them."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ps_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ps_service.access.reread import Stamp


@dataclass(frozen=True, slots=True)
class Quota:
    """How much may be used of each resource; infinity is no quota.

    Attributes:
        sessions: Sessions, connected or not.
        streams: Sessions with an open stream, and unary calls that change something and run.
        contexts: Open passes.
        context_seconds: How long a pass may be open, in seconds.
        held_bytes: Bytes that open passes hold, results that stay on the owner, and values that wait in collectives.
        objects: Hosted objects of all kinds, with and without a name.
        object_bytes: Bytes of their parameters and buffers.
        table_rows: Rows of tables, on this owner.
        table_bytes: Bytes of tables, on this owner.
        request_bytes: Bytes of large requests that arrive, wait or run.
        message_bytes: Bytes of tensors of one request.
        nesting: How many requests may be nested in each other.
        calls_per_second: Requests per second.
        compute_per_second: Seconds of compute threads per second.
        burst_seconds: How many seconds' worth of these two may be used at once.
    """

    sessions: float = math.inf
    streams: float = math.inf
    contexts: float = math.inf
    context_seconds: float = math.inf
    held_bytes: float = math.inf
    objects: float = math.inf
    object_bytes: float = math.inf
    table_rows: float = math.inf
    table_bytes: float = math.inf
    request_bytes: float = math.inf
    message_bytes: float = math.inf
    nesting: float = math.inf
    calls_per_second: float = math.inf
    compute_per_second: float = math.inf
    burst_seconds: float = 1.0


NO_QUOTA: Final = Quota()

NAMES: Final = tuple(each.name for each in fields(Quota))

REMEDIES: Final = {
    "sessions": "End clients that are not needed",
    "streams": "End clients that are not needed",
    "contexts": "End contexts, or run their backward",
    "held_bytes": "End contexts or run their backward, drop handles of results, and send less in collectives",
    "objects": "Delete objects, and drop handles of those without a name",
    "object_bytes": "Delete objects, and drop handles of those without a name",
    "table_rows": "Remove or evict rows",
    "table_bytes": "Remove or evict rows, or delete tables",
    "request_bytes": "Have fewer large requests in flight",
    "message_bytes": "Send less at a time",
    "nesting": "Nest fewer calls; does the code that is called call itself?",
    "calls_per_second": "Ask less often",
    "compute_per_second": "Ask for less work",
}
"""What a caller can do that is over a quota."""


class Settings(NamedTuple):
    """What a file of quotas says. An identity without a quota of its own has the `default`."""

    default: Quota = NO_QUOTA
    everybody: Quota = NO_QUOTA
    identities: Mapping[str, Quota] = {}
    namespaces: Mapping[str, Quota] = {}


class QuotaFile:
    """A TOML file with the tables `default`, `all`, `identity.NAME` and `namespace.NAME`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stamp(self) -> Stamp:
        """Changes when the file does. Raises `InvalidArgumentError` if it cannot be read."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise self._invalid(f"cannot be read: {error.strerror}") from None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def read(self) -> Settings:
        """What it says. Raises `InvalidArgumentError` if it cannot be read, or something in it is not valid."""
        try:
            told = tomllib.loads(self.path.read_text("utf-8"))
        except OSError as error:
            raise self._invalid(f"cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise self._invalid(f"is no TOML: {error}") from None
        if unknown := told.keys() - {"default", "all", "identity", "namespace"}:
            raise self._invalid(
                f"has the unknown table [{min(unknown)}]; there are [default], [all], [identity.NAME] and "
                "[namespace.NAME]"
            )
        default = self._quota("default", told.get("default", {}), NO_QUOTA)
        return Settings(
            default,
            self._quota("all", told.get("all", {}), NO_QUOTA),
            self._each("identity", told.get("identity", {}), default),
            self._each("namespace", told.get("namespace", {}), NO_QUOTA),
        )

    def _each(self, kind: str, told: Any, before: Quota) -> dict[str, Quota]:
        if not isinstance(told, dict):
            raise self._invalid(f"says {kind} = {told!r}, and not [{kind}.NAME]")
        return {name: self._quota(f"{kind}.{name}", each, before) for name, each in told.items()}

    def _quota(self, table: str, told: Any, before: Quota) -> Quota:
        if not isinstance(told, dict):
            raise self._invalid(f"says {table} = {told!r}, and not [{table}]")
        for name, value in told.items():
            if name not in NAMES:
                raise self._invalid(f"has the unknown quota {name!r} in [{table}]; there are {', '.join(NAMES)}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise self._invalid(f"says {name} = {value!r} in [{table}]: a quota is a number, or inf for none")
            if (not value and name.endswith("_per_second")) or (name == "burst_seconds" and not 0 < value < math.inf):
                raise self._invalid(f"says {name} = {value!r} in [{table}]: it has to be larger than 0, and a number")
        return replace(before, **told)

    def _invalid(self, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"the quota file {self.path} {why}")
